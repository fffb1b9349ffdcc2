"""Paged attention for decode rows and prefill chunks alike: softmax(q kᵀ / √D) v over the pages of each row.

Work is shared out as (item, KV head): an item is a run of consecutive query tokens of one row, all heads of a group
together. Keys are visited in tiles of 64 positions, counted from position 0, with an online softmax; a tile's keys are
transposed and its values copied next to each other once for all queries of the item. What a query computes depends on its
own position only, never on the item it falls into, so chunking and batching leave the bits alone.
"""

import math

import numpy as np

from cuda.kernels.cpu_jit import device, fast_device
from cuda.kernels.cpu_linear import multiply_floats
from cuda.kernels.cpu_math import exp
from cuda.kernels.cpu_memory import fetch_add, float_of_bfloat16, floats, ints, longs, shorts
from cuda.kernels.cpu_tile import BFLOAT16, FLOAT32, make_transpose

QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, MAX_PAGES, KV_BFLOAT16, WINDOW = 0, 1, 2, 3, 4, 5, 6
"""Places in the int64 array `shape`: H, K, D, S, stride of a page table in entries, 0 | 1, latest positions seen (0: all)."""
ITEM_FIELDS = 4
"""An item: index of its first token in the step, number of tokens, row slot, position of the first token (int32)."""
MAX_QUERIES = 96
"""Query tokens times heads of a group in an item (or one token's heads, if those are more)."""
TILE = 64
"""Keys visited at a time."""

_HIDDEN = np.float32(-1e30)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_transpose_floats, _transpose_halves = make_transpose(FLOAT32), make_transpose(BFLOAT16)


def scratch_bytes(group: int, head_dim: int) -> int:
    """What one thread needs for queries, keys, values, scores, output, running maximum and sum, and key addresses."""
    queries = max(MAX_QUERIES, group)
    width = padded(head_dim)
    return 4 * (queries * width * 2 + TILE * width * 2 + queries * TILE + queries * 2) + 8 * TILE + 64 * 16


def padded(head_dim: int) -> int:
    """Head size rounded up to whole panels of 32."""
    return -(-head_dim // 32) * 32


@device
def attention(next_item, num_items, items, page_tables, shape, q, ldq, pool, out, ldo, scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """Attend for all heads of every item; `q` and `out` are [T, H * D] float32, strides in bytes."""
    sizes = longs(shape, 8)
    kv_heads = sizes[KV_HEADS]
    while True:
        work = fetch_add(next_item, 1)
        if work >= num_items * kv_heads:
            break
        item = ints(items + work // kv_heads * ITEM_FIELDS * 4, ITEM_FIELDS)
        table = page_tables + item[2] * sizes[MAX_PAGES] * 4
        _attend(item[0], item[1], item[3], work % kv_heads, table, shape, q, ldq, pool, out, ldo, scratch)


@device
def _attend(first_token, count, start, kv_head, table, shape, q, ldq, pool, out, ldo, scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    sizes = longs(shape, 8)
    group, dim = sizes[QUERY_HEADS] // sizes[KV_HEADS], sizes[HEAD_DIM]
    width = -(-dim // 32) * 32
    queries = count * group
    rows = max(MAX_QUERIES, group)
    queries_at = scratch
    keys_at = queries_at + rows * width * 4
    values_at = keys_at + TILE * width * 4
    scores_at = values_at + TILE * width * 4
    output_at = scores_at + rows * TILE * 4
    highest = floats(output_at + rows * width * 4, rows)
    sums = floats(output_at + rows * width * 4 + rows * 4, rows)
    key_rows = output_at + rows * width * 4 + rows * 8 + 64

    _take_queries(first_token, count, kv_head, group, dim, q, ldq, queries_at, width)
    highest[:queries] = _HIDDEN
    sums[:queries] = _ZERO
    floats(output_at, queries * width)[:] = _ZERO
    window = sizes[WINDOW]
    lowest = max(0, start - window + 1) if window > 0 else 0
    for base in range(lowest // TILE * TILE, start + count, TILE):
        visible = min(TILE, start + count - base)
        _gather(base, visible, kv_head, table, shape, pool, keys_at, values_at, key_rows, width)
        for panel in range(2):
            multiply_floats(
                queries,
                queries_at,
                width * 4,
                keys_at + panel * width * 128,
                128,
                dim,
                scores_at + panel * 128,
                TILE * 4,
                0,
            )
        for query in range(queries):
            position = start + query // group
            first = max(0, position - window + 1 - base) if window > 0 else 0
            _softmax(
                floats(scores_at + query * TILE * 4, TILE),
                first,
                position - base,
                query,
                highest,
                sums,
                floats(output_at + query * width * 4, width),
                width,
            )
        for panel in range(width // 32):
            multiply_floats(
                queries,
                scores_at,
                TILE * 4,
                values_at + panel * 128,
                width * 4,
                TILE,
                output_at + panel * 128,
                width * 4,
                1,
            )
    for query in range(queries):
        source = floats(output_at + query * width * 4, dim)
        target = floats(out + (first_token + query // group) * ldo + (kv_head * group + query % group) * dim * 4, dim)
        factor = _ONE / sums[query]
        for i in range(dim):
            target[i] = source[i] * factor


@device
def _take_queries(first_token, count, kv_head, group, dim, q, ldq, queries_at, width):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    scale = np.float32(1.0 / math.sqrt(dim))
    for token in range(count):
        for head in range(group):
            source = floats(q + (first_token + token) * ldq + (kv_head * group + head) * dim * 4, dim)
            target = floats(queries_at + (token * group + head) * width * 4, dim)
            for i in range(dim):
                target[i] = source[i] * scale


@device
def _gather(base, visible, kv_head, table, shape, pool, keys_at, values_at, key_rows, width):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    """Keys base … base + visible - 1 as two panels [D, 32], their values as [64, D]; what lies behind them is zero."""
    sizes = longs(shape, 8)
    dim, page_size = sizes[HEAD_DIM], sizes[PAGE_SIZE]
    item_bytes = 2 if sizes[KV_BFLOAT16] != 0 else 4
    value_offset = sizes[KV_HEADS] * page_size * dim * item_bytes
    pages = ints(table, sizes[MAX_PAGES])
    rows = longs(key_rows, TILE)
    for i in range(visible):
        position = base + i
        page = np.int64(pages[position // page_size])
        rows[i] = pool + ((page * 2 * sizes[KV_HEADS] + kv_head) * page_size + position % page_size) * dim * item_bytes
        target = floats(values_at + i * width * 4, dim)
        if item_bytes == 2:
            bits = shorts(rows[i] + value_offset, dim)
            for j in range(dim):
                target[j] = float_of_bfloat16(bits[j])
        else:
            source = floats(rows[i] + value_offset, dim)
            for j in range(dim):
                target[j] = source[j]
    for i in range(visible, TILE):
        rows[i] = rows[0]
        floats(values_at + i * width * 4, dim)[:] = _ZERO
    whole = dim // 16 * 16
    for block in range(TILE // 16):
        panel_at = keys_at + block // 2 * width * 128 + block % 2 * 64
        for i in range(0, whole, 16):
            if item_bytes == 2:
                _transpose_halves(key_rows + block * 128, i * 2, panel_at + i * 128, 128)
            else:
                _transpose_floats(key_rows + block * 128, i * 4, panel_at + i * 128, 128)
        for i in range(whole, dim):
            column = floats(panel_at + i * 128, 16)
            for j in range(16):
                if item_bytes == 2:
                    column[j] = float_of_bfloat16(shorts(rows[block * 16 + j], dim)[i])
                else:
                    column[j] = floats(rows[block * 16 + j], dim)[i]


@device
def _softmax(scores, first, last, query, highest, sums, output, width):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    """Scores of keys first … last become weights against the new maximum, the others 0; what came before is rescaled."""
    if last < first or first >= TILE:
        scores[:] = _ZERO
        return
    if first > 0 or last < TILE - 1:
        for i in range(TILE):
            scores[i] = scores[i] if first <= i <= last else _HIDDEN
    before = highest[query]
    now = max(before, _maximum(scores))
    for i in range(TILE):
        scores[i] = exp(scores[i] - now)
    kept = exp(before - now)
    sums[query] = sums[query] * kept + _sum(scores)
    if kept != _ONE:
        for i in range(width):
            output[i] *= kept
        highest[query] = now


@fast_device
def _maximum(scores):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    result = scores[0]
    for i in range(TILE):
        result = max(result, scores[i])
    return result


@fast_device
def _sum(scores):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    total = _ZERO
    for i in range(TILE):
        total += scores[i]
    return total
