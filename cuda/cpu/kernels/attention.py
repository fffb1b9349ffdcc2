# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""Paged attention for decode rows and prefill chunks alike: softmax(q kᵀ / √D) v over the pages of each row.

Work is shared out as (item, KV head): an item is a run of consecutive query tokens of one row, all heads of a group
together. Keys are visited in tiles of 64 positions, counted from position 0, with an online softmax. What a query
computes depends on its own position only, not on the item it falls into: chunking and batching leave the bits alone.
"""

import math
from typing import NamedTuple

import numpy as np

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.linear import Product, multiply_floats, multiply_halves
from cuda.cpu.kernels.math import exp
from cuda.cpu.kernels.memory import Address, fetch_add, fill, floats, ints, longs, prefetch, widen, widened
from cuda.cpu.kernels.rope import Shape, load_shape
from cuda.cpu.kernels.tile import BFLOAT16, FLOAT32, make_fold, make_transpose

ITEM_FIELDS = 4
"""An item: index of its first token in the step, number of tokens, row slot, position of the first token (int32)."""
MAX_QUERIES = 96
"""Query tokens times heads of a group in an item (or one token's heads, if those are more)."""
TILE = 64
"""Keys visited at a time."""

_FEW_QUERIES = 16  # so few read values where they lie; more, and copying them next to each other pays
_HIDDEN = np.float32(-1e30)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_largest, _sum = make_fold(TILE // 16, largest=True), make_fold(TILE // 16, largest=False)
_transpose_floats, _transpose_halves = make_transpose(FLOAT32), make_transpose(BFLOAT16)


class _Scratch(NamedTuple):
    """Addresses of one thread's working memory for an item; a row is a (query token, head of the group)."""

    group: int
    """Query heads of a KV head."""
    width: int
    """W: the head size in whole panels."""
    queries: Address
    """[rows, W] float32."""
    keys: Address
    """Two panels [W, 32] float32."""
    values: Address
    """[TILE, W] float32."""
    scores: Address
    """[rows, TILE] float32."""
    output: Address
    """[rows, W] float32."""
    highest: Address
    """[rows] float32: the running maximum."""
    sums: Address
    """[rows] float32: the running sum."""
    key_rows: Address
    """[TILE] int64: where each key of the tile lies."""
    next_rows: Address
    """[TILE] int64: the same of the next tile."""


def scratch_bytes(group: int, head_dim: int) -> int:
    """What one thread needs."""
    rows, width = max(MAX_QUERIES, group), -(-head_dim // 32) * 32
    return 4 * (rows * width * 2 + TILE * width * 2 + rows * TILE + rows * 2) + 16 * TILE + 64


@device
def attention(
    next_item: Address,
    num_items: int,
    items: Address,
    page_tables: Address,
    shape_at: Address,
    q: Address,
    ldq: int,
    pool: Address,
    out: Address,
    ldo: int,
    scratch_at: Address,
) -> int:
    """Attend for all heads of every item; `q` and `out` are [T, H * D] float32, strides in bytes."""
    shape = load_shape(shape_at)
    scratch = _lay_out(scratch_at, shape)
    mine = 0
    while True:
        work = fetch_add(next_item, 1)
        if work >= num_items * shape.num_kv_heads:
            break
        mine += 1
        item = ints(items + work // shape.num_kv_heads * ITEM_FIELDS * 4, ITEM_FIELDS)
        first_token, count, start = int(item[0]), int(item[1]), int(item[3])
        kv_head = work % shape.num_kv_heads
        group_offset = kv_head * scratch.group * shape.head_dim * 4
        table = page_tables + int(item[2]) * shape.max_pages * 4
        _take_queries(q + first_token * ldq + group_offset, ldq, count, shape, scratch)
        _visit_tiles(count, start, kv_head, table, pool, shape, scratch)
        _put_output(out + first_token * ldo + group_offset, ldo, count, shape, scratch)
    return mine


@device
def _lay_out(at: Address, shape: Shape) -> _Scratch:
    group, width = shape.num_heads // shape.num_kv_heads, -(-shape.head_dim // 32) * 32
    rows = max(MAX_QUERIES, group)
    keys = at + rows * width * 4
    values = keys + TILE * width * 4
    scores = values + TILE * width * 4
    output = scores + rows * TILE * 4
    highest = output + rows * width * 4
    key_rows = (highest + rows * 8 + 63) // 64 * 64
    return _Scratch(
        group, width, at, keys, values, scores, output, highest, highest + rows * 4, key_rows, key_rows + TILE * 8
    )  # fmt: skip


@device
def _take_queries(q: Address, ldq: int, count: int, shape: Shape, scratch: _Scratch) -> None:
    """Scaled queries next to each other; nothing seen, nothing summed."""
    dim, rows = shape.head_dim, count * scratch.group
    factor = np.float32(1.0 / math.sqrt(dim))
    for row in range(rows):
        at = row // scratch.group * ldq + row % scratch.group * dim * 4
        _scale(q + at, scratch.queries + row * scratch.width * 4, dim, factor)
    fill(scratch.highest, rows, _HIDDEN)
    fill(scratch.sums, rows, _ZERO)
    fill(scratch.output, rows * scratch.width, _ZERO)


@device
def _put_output(out: Address, ldo: int, count: int, shape: Shape, scratch: _Scratch) -> None:
    dim, rows = shape.head_dim, count * scratch.group
    for row in range(rows):
        at = row // scratch.group * ldo + row % scratch.group * dim * 4
        _scale(scratch.output + row * scratch.width * 4, out + at, dim, _ONE / floats(scratch.sums, rows)[row])


@device
def _scale(source: Address, target: Address, count: int, factor: np.float32) -> None:
    values, scaled = floats(source, count), floats(target, count)
    for i in range(count):
        scaled[i] = values[i] * factor


@device
def _visit_tiles(
    count: int, start: int, kv_head: int, table: Address, pool: Address, shape: Shape, scratch: _Scratch
) -> None:
    dim, width, rows = shape.head_dim, scratch.width, count * scratch.group
    in_place = rows <= _FEW_QUERIES and dim == width
    value_offset = shape.num_kv_heads * shape.page_size * dim * shape.item_bytes
    end = start + count
    base = max(0, start - shape.window + 1) // TILE * TILE if shape.window > 0 else 0
    _find_rows(scratch.key_rows, base, end, kv_head, table, pool, shape)
    while base < end:
        visible = min(TILE, end - base)
        _find_rows(scratch.next_rows, base + TILE, end, kv_head, table, pool, shape)
        _transpose_keys(shape, scratch)
        for panel in range(TILE // 32):
            keys = scratch.keys + panel * width * 128
            scores = scratch.scores + panel * 128
            multiply_floats(rows, Product(scratch.queries, width * 4, keys, 128, 0, dim, scores, TILE * 4, 0))
        _soften(rows, base, start, shape.window, scratch)
        if in_place:
            _add_values_in_place(rows, base, visible, value_offset, shape, scratch)
        else:
            _copy_values(visible, value_offset, shape, scratch)
            for panel in range(width // 32):
                target, values = scratch.output + panel * 128, scratch.values + panel * 128
                product = Product(scratch.scores, TILE * 4, values, width * 4, 0, TILE, target, width * 4, 1)
                multiply_floats(rows, product)
        for i in range(TILE):
            longs(scratch.key_rows, TILE)[i] = longs(scratch.next_rows, TILE)[i]
        base += TILE


@device
def _find_rows(
    rows_at: Address, base: int, end: int, kv_head: int, table: Address, pool: Address, shape: Shape
) -> None:
    """Addresses of keys base … base + TILE - 1, those from `end` on repeating the first; asks for their memory."""
    rows, pages = longs(rows_at, TILE), ints(table, shape.max_pages)
    row_bytes = shape.head_dim * shape.item_bytes
    value_offset = shape.num_kv_heads * shape.page_size * row_bytes
    visible = min(TILE, end - base)
    done = 0
    while done < visible:
        page, slot = (base + done) // shape.page_size, (base + done) % shape.page_size
        at = pool + ((int(pages[page]) * 2 * shape.num_kv_heads + kv_head) * shape.page_size + slot) * row_bytes
        run = min(shape.page_size - slot, visible - done)
        for i in range(run):
            rows[done + i] = at + i * row_bytes
        for line in range(0, run * row_bytes, 64):
            prefetch(at + line)
            prefetch(at + value_offset + line)
        done += run
    for i in range(max(visible, 0), TILE):
        rows[i] = rows[0]


@device
def _transpose_keys(shape: Shape, scratch: _Scratch) -> None:
    """The tile's keys as two panels [D, 32]."""
    dim, width, whole = shape.head_dim, scratch.width, shape.head_dim // 16 * 16
    rows = longs(scratch.key_rows, TILE)
    for block in range(TILE // 16):
        panel = scratch.keys + block // 2 * width * 128 + block % 2 * 64
        for i in range(0, whole, 16):
            if shape.item_bytes == 2:
                _transpose_halves(scratch.key_rows + block * 128, i * 2, panel + i * 128, 128)
            else:
                _transpose_floats(scratch.key_rows + block * 128, i * 4, panel + i * 128, 128)
        for i in range(whole, dim):
            column = floats(panel + i * 128, 16)
            for j in range(16):
                column[j] = widened(rows[block * 16 + j] + i * shape.item_bytes, shape.item_bytes)


@device
def _soften(rows: int, base: int, start: int, window: int, scratch: _Scratch) -> None:
    """Scores become weights against each row's new maximum, hidden keys 0; what came before is rescaled."""
    group, width = scratch.group, scratch.width
    highest, sums = floats(scratch.highest, rows), floats(scratch.sums, rows)
    for row in range(rows):
        at = scratch.scores + row * TILE * 4
        scores = floats(at, TILE)
        last = start + row // group - base
        first = max(0, last - window + 1) if window > 0 else 0
        if last < 0 or first >= TILE:
            fill(at, TILE, _ZERO)
            continue
        if first > 0 or last < TILE - 1:
            for i in range(TILE):
                scores[i] = scores[i] if first <= i <= last else _HIDDEN
        before = highest[row]
        now = max(before, _largest(at))
        for i in range(TILE):
            scores[i] = exp(scores[i] - now)
        kept = exp(before - now)
        sums[row] = sums[row] * kept + _sum(at)
        if kept != _ONE:
            output = floats(scratch.output + row * width * 4, width)
            for i in range(width):
                output[i] *= kept
            highest[row] = now


@device
def _add_values_in_place(
    rows: int, base: int, visible: int, value_offset: int, shape: Shape, scratch: _Scratch
) -> None:
    """Output += weights @ values, page by page."""
    row_bytes = shape.head_dim * shape.item_bytes
    at = longs(scratch.key_rows, TILE)
    done = 0
    while done < visible:
        run = min(shape.page_size - (base + done) % shape.page_size, visible - done)
        weights = scratch.scores + done * 4
        for panel in range(shape.head_dim // 32):
            values = at[done] + value_offset + panel * 32 * shape.item_bytes
            target = scratch.output + panel * 128
            product = Product(weights, TILE * 4, values, row_bytes, 0, run, target, shape.head_dim * 4, 1)
            if shape.item_bytes == 2:
                multiply_halves(rows, product)
            else:
                multiply_floats(rows, product)
        done += run


@device
def _copy_values(visible: int, value_offset: int, shape: Shape, scratch: _Scratch) -> None:
    """The tile's values as [TILE, W]; zero behind `visible`."""
    dim, rows = shape.head_dim, longs(scratch.key_rows, TILE)
    for i in range(TILE):
        at = scratch.values + i * scratch.width * 4
        if i < visible:
            widen(rows[i] + value_offset, at, dim, shape.item_bytes)
        else:
            fill(at, dim, _ZERO)
