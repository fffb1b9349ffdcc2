"""Which block attends to what: cuts a step's segments into the work list of `attention.cu`, in NumPy.

A segment is a run of query tokens of one request; its rows are (token, head of a KV group) pairs. Rows are cut into
tiles, and the keys of small tiles into items where whole tiles would leave multiprocessors idle. No choice made here
changes a bit of the results. Never touches the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Numbers = Sequence[int] | Ints

ITEM_FIELDS = 8
"""Of an item: slot, first token, its position, first row, number of rows, first split, number of splits, row of partial
results where the tile's first split goes or -1. A tile that was cut is a row of the same form, with all its splits."""
SPLIT_KEYS = 128
"""Keys whose result is one partial result; splits begin at multiples of it."""
NUM_WARPS = 4
SMALL_TILE_ROWS = 16
"""One warp's: a block's warps take a split each."""
LARGE_TILE_ROWS = NUM_WARPS * SMALL_TILE_ROWS
"""A block's: its warps walk all splits together."""

_MOST_ROWS_IN_SMALL_TILES = 32  # reading the keys twice is cheaper than two idle warps
_CUTS = np.array([1, 2, 4, 8, 16, 32, 1 << 20])[:, None]  # rounds of an item; the last cuts nothing
_START_ROUNDS = 0.25  # what an item takes besides its rounds of NUM_WARPS splits: its first keys are waited for
_PARTIAL_SHARE = 0.06  # traffic of partial results, as a share of the keys' and values'
_COMBINE_ROUNDS = 0.3
_FIRST_SPLIT, _NUM_SPLITS, _PARTIAL = 5, 6, 7


@dataclass(frozen=True)
class WorkPlanner:
    """Makes work lists for one model on one device.

    Attributes:
        group: Query heads of a KV head.
        num_kv_heads: K; every item is worked on once for each.
        window: Latest positions that a token sees; 0 is all.
        num_blocks: That run at once.
        max_partial_rows: That the buffers of partial results hold.
        large_tiles: Whether the kernel takes them; else all tiles are small.
    """

    group: int
    num_kv_heads: int
    window: int
    num_blocks: int
    max_partial_rows: int
    large_tiles: bool

    def max_items(self, max_tokens: int, max_segments: int) -> int:
        """Rows of a work list for a step of that many tokens in that many segments, at most."""
        tiles = max_tokens * self.group // SMALL_TILE_ROWS + max_segments
        return 2 * tiles + self.max_partial_rows // NUM_WARPS

    def work_items(self, slots: Numbers, starts: Numbers, counts: Numbers) -> tuple[Ints, Ints]:
        """The work list of segments that lie one after the other in a step's tokens.

        Args:
            slots: Whose pages.
            starts: Position of each segment's first token.
            counts: Tokens of each.

        Returns:
            int32 [items + cut tiles, 8], longest items first; int32 [2], how many of each.
        """
        tiles, rounds = self._tiles(*(np.asarray(numbers, np.int32) for numbers in (slots, starts, counts)))
        cut, item_splits = self._cuts(tiles, rounds)
        if cut is None:
            return tiles[np.argsort(-rounds, kind="stable")], np.array([len(tiles), 0], np.int32)
        items, merges = _cut_up(tiles, cut, item_splits)
        return np.concatenate([items, merges]), np.array([len(items), len(merges)], np.int32)

    def _tiles(self, slots: Ints, starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """[tiles, 8], uncut, and the rounds of splits that a block needs for each."""
        rows = counts * self.group
        small = rows <= _MOST_ROWS_IN_SMALL_TILES
        if not self.large_tiles or 2 * (-(-rows // LARGE_TILE_ROWS)).sum() * self.num_kv_heads <= self.num_blocks:
            small[:] = True  # idle blocks share the keys of small tiles, which costs less than their idleness
        tile_rows = np.where(small, SMALL_TILE_ROWS, LARGE_TILE_ROWS)
        num_tiles = -(-rows // tile_rows)
        segment = np.repeat(np.arange(len(rows)), num_tiles)
        first_row = (np.arange(len(segment)) - (np.cumsum(num_tiles) - num_tiles)[segment]) * tile_rows[segment]
        num_rows = np.minimum(tile_rows[segment], rows[segment] - first_row)
        start = starts[segment]
        end = start + (first_row + num_rows - 1) // self.group + 1
        lowest = np.maximum(start + first_row // self.group + 1 - self.window, 0) if self.window else 0 * start
        tiles = np.empty((len(segment), ITEM_FIELDS), np.int32)
        first_split = lowest // SPLIT_KEYS
        num_splits = -(-end // SPLIT_KEYS) - first_split
        fields = (
            slots[segment],
            (np.cumsum(counts) - counts)[segment],
            start,
            first_row,
            num_rows,
            first_split,
            num_splits,
            -1,
        )
        for column, field in enumerate(fields):
            tiles[:, column] = field
        rounds = np.where(num_rows <= SMALL_TILE_ROWS, -(-num_splits // NUM_WARPS), num_splits)
        return tiles, rounds.astype(np.int32)

    def _cuts(self, tiles: Ints, rounds: Ints) -> tuple[npt.NDArray[np.bool_] | None, int]:
        """Which tiles to cut into items of how many splits: what ends first if blocks take the next item when free."""
        num_rows, num_splits = tiles[:, 4], tiles[:, _NUM_SPLITS]
        can = (num_rows <= SMALL_TILE_ROWS) & (rounds > 1)
        if not can.any():
            return None, 0
        partial_rows = np.where(can, num_rows * num_splits, 0).astype(np.int64)
        longest_first = np.argsort(-rounds, kind="stable")
        fits = np.empty_like(can)
        fits[longest_first] = np.cumsum(partial_rows[longest_first]) <= self.max_partial_rows
        cut = (can & fits) & (rounds > _CUTS)
        num_items = np.where(cut, -(-rounds // _CUTS), 1).sum(axis=1)
        cut_rounds = np.where(cut, rounds, 0).sum(axis=1)
        work = rounds.sum() + _START_ROUNDS * num_items + _PARTIAL_SHARE * cut_rounds
        last = np.where(cut, _CUTS[:, :], rounds).max(axis=1)
        cost = work * self.num_kv_heads / self.num_blocks + last + _COMBINE_ROUNDS * (cut_rounds > 0)
        best = int(np.argmin(cost))
        return (cut[best], NUM_WARPS * int(_CUTS[best, 0])) if cut_rounds[best] else (None, 0)


def _cut_up(tiles: Ints, cut: npt.NDArray[np.bool_], item_splits: int) -> tuple[Ints, Ints]:
    """The items of at most `item_splits` splits of the tiles that are cut, among the others; and the cut tiles."""
    partial_rows = np.where(cut, tiles[:, 4] * tiles[:, _NUM_SPLITS], 0)
    tiles[cut, _PARTIAL] = (np.cumsum(partial_rows) - partial_rows)[cut]
    num_items = np.where(cut, -(-tiles[:, _NUM_SPLITS] // item_splits), 1)
    tile = np.repeat(np.arange(len(tiles)), num_items)
    items = tiles[tile]
    skipped = (np.arange(len(tile)) - (np.cumsum(num_items) - num_items)[tile]) * item_splits
    items[:, _FIRST_SPLIT] += skipped
    items[:, _NUM_SPLITS] -= skipped
    items[:, _NUM_SPLITS] = np.where(cut[tile], np.minimum(items[:, _NUM_SPLITS], item_splits), items[:, _NUM_SPLITS])
    small = items[:, 4] <= SMALL_TILE_ROWS
    rounds = np.where(small, -(-items[:, _NUM_SPLITS] // NUM_WARPS), items[:, _NUM_SPLITS])
    return items[np.argsort(-rounds, kind="stable")], tiles[cut]
