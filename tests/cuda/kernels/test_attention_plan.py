from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda.kernels.attention_plan import Ints, WorkPlanner

PLANNER = WorkPlanner(group=4, num_kv_heads=2, window=0, num_blocks=16, max_partial_rows=400, large_tiles=True)
Segments = Sequence[tuple[int, int]]


def plan(planner: WorkPlanner, segments: Segments) -> tuple[Ints, Ints]:
    """The items, and the tiles that were cut."""
    starts, counts = zip(*segments, strict=True)
    items, (num_items, num_cut) = planner.work_items(range(len(segments)), starts, counts)
    assert len(items) == num_items + num_cut <= planner.max_items(sum(counts), len(counts))
    return items[:num_items], items[num_items:]


def splits_of(segments: Segments, group: int, window: int) -> Counter[tuple[int, int, int]]:
    """(slot, row, split of 128 keys) of all that must be visited, row by row."""
    return Counter(
        (slot, row, split)
        for slot, (start, count) in enumerate(segments)
        for row in range(count * group)
        for position in [start + row // group]
        for split in range((max(0, position + 1 - window) if window else 0) // 128, position // 128 + 1)
    )


@given(
    segments=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 80)), min_size=1, max_size=6),
    group=st.sampled_from([1, 3, 4, 20]),
    window=st.sampled_from([0, 1, 100, 1000]),
    num_blocks=st.sampled_from([1, 16, 300]),
    max_partial_rows=st.sampled_from([0, 50, 10_000]),
    large_tiles=st.booleans(),
)
def test_every_row_visits_each_of_its_splits_exactly_once(
    segments: Segments, group: int, window: int, num_blocks: int, max_partial_rows: int, *, large_tiles: bool
) -> None:
    planner = WorkPlanner(group, 2, window, num_blocks, max_partial_rows, large_tiles)
    items, cut = plan(planner, segments)
    visited = Counter(
        (slot, row, split)
        for slot, _, _, first_row, num_rows, first_split, num_splits, _ in items.tolist()
        for row in range(first_row, first_row + num_rows)
        for split in range(first_split, first_split + num_splits)
    )
    needed = splits_of(segments, group, window)
    assert max(visited.values()) == 1
    assert not needed - visited
    first_tokens = np.cumsum([0] + [count for _, count in segments])
    for slot, first_token, position, *_ in (*items.tolist(), *cut.tolist()):
        assert (first_token, position) == (first_tokens[slot], segments[slot][0])

    places = Counter(
        partial + split * num_rows + row
        for _, _, _, _, num_rows, _, num_splits, partial in cut.tolist()
        for split in range(num_splits)
        for row in range(num_rows)
    )
    assert all(count == 1 and 0 <= place < max_partial_rows for place, count in places.items())
    tiles = {tuple(tile[:5]): tile for tile in cut.tolist()}
    for item in items.tolist():
        whole = tiles.get(tuple(item[:5]))
        assert item[7] == (-1 if whole is None else whole[7])
        assert whole is None or whole[5] <= item[5] < item[5] + item[6] <= whole[5] + whole[6]


def test_long_items_come_first() -> None:
    items, _ = plan(replace(PLANNER, max_partial_rows=0), [(100, 1), (5000, 1), (1000, 1), (300, 90)])
    rounds = np.where(items[:, 4] > 16, items[:, 6], -(-items[:, 6] // 4))
    assert rounds.tolist() == sorted(rounds, reverse=True)


def test_one_long_row_is_shared_out_among_idle_blocks() -> None:
    items, cut = plan(PLANNER, [(8000, 1)])
    assert len(cut) == 1
    assert len(items) * PLANNER.num_kv_heads >= PLANNER.num_blocks


def test_rows_that_keep_all_blocks_busy_are_left_whole() -> None:
    items, cut = plan(PLANNER, [(1000, 1)] * 256)
    assert (len(items), len(cut)) == (256, 0)


def test_the_longest_rows_have_the_buffers_of_partial_results() -> None:
    _, cut = plan(PLANNER, [(4000, 1), (10_000, 1), (4000, 1)])
    assert cut[:, 0].tolist() == [1]


def test_small_tiles_only_where_the_kernel_takes_no_others() -> None:
    items, _ = plan(replace(PLANNER, large_tiles=False), [(0, 100)])
    assert items[:, 4].max() == 16
    assert plan(PLANNER, [(0, 100)])[0][:, 4].max() == 64


def test_a_chunk_too_short_to_keep_large_tiles_busy_is_cut_into_small_ones() -> None:
    few, cut = plan(PLANNER, [(5000, 40)])
    assert few[:, 4].max() == 16
    assert len(few) * PLANNER.num_kv_heads >= PLANNER.num_blocks
    assert len(cut) < 10  # as many as the buffers of partial results hold
    assert plan(PLANNER, [(5000, 200)])[0][:, 4].max() == 64


def test_a_step_without_segments_has_no_work() -> None:
    items, counts = PLANNER.work_items([], [], [])
    assert items.shape == (0, 8)
    assert counts.tolist() == [0, 0]


@pytest.mark.parametrize("window", [1, 128, 129, 1000])
def test_splits_before_the_window_are_left_out(window: int) -> None:
    items, _ = plan(replace(PLANNER, window=window), [(5000, 1)])
    assert items[:, 5].min() == (5001 - window) // 128
