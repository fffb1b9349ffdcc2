"""Query and key norms, rotary positions, and the write of new keys and values into their pages.

The qkv row is rotated in place (attention reads the queries there); the pool layout is `[page, 2, kv_head, slot, head_dim]`.
"""

from cuda.kernels.cpu_attention import KV_BFLOAT16, KV_HEADS, MAX_PAGES, PAGE_SIZE, QUERY_HEADS, HEAD_DIM
from cuda.kernels.cpu_jit import device
from cuda.kernels.cpu_memory import bfloat16_of_float, fetch_add, floats, ints, longs, shorts
from cuda.kernels.cpu_rows import normalise


@device
def rope_and_store(next_row, rows, slots, positions, page_tables, shape, qkv, ldx, pool, table, q_norm, k_norm, eps):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """`table` holds [cos | sin] of each position, head_dim float32; `q_norm` and `k_norm` are 0 where a model has none."""
    sizes = longs(shape, 8)
    query_heads, kv_heads, dim = sizes[QUERY_HEADS], sizes[KV_HEADS], sizes[HEAD_DIM]
    page_size, max_pages, is_bfloat16 = sizes[PAGE_SIZE], sizes[MAX_PAGES], sizes[KV_BFLOAT16]
    slot_of = ints(slots, rows)
    position_of = ints(positions, rows)
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        position = position_of[row]
        page = ints(page_tables + slot_of[row] * max_pages * 4, max_pages)[position // page_size]
        angles = floats(table + position * dim * 4, dim)
        source = qkv + row * ldx
        for head in range(query_heads + kv_heads):
            values = floats(source + head * dim * 4, dim)
            if q_norm != 0:
                weight = q_norm if head < query_heads else k_norm
                normalise(values, floats(weight, dim), values, dim, eps)
            _rotate(values, angles, dim // 2)
        for head in range(kv_heads):
            key = (page * 2 * kv_heads + head) * page_size * dim + position % page_size * dim
            value = key + kv_heads * page_size * dim
            store_row(source + (query_heads + head) * dim * 4, pool, key, dim, is_bfloat16)
            store_row(source + (query_heads + kv_heads + head) * dim * 4, pool, value, dim, is_bfloat16)


@device
def _rotate(values, angles, half):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for i in range(half):
        first = values[i]
        second = values[half + i]
        cosine = angles[i]
        sine = angles[half + i]
        values[i] = first * cosine - second * sine
        values[half + i] = second * cosine + first * sine


@device
def store_row(source, pool, offset, dim, is_bfloat16):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """Copy one head row into the pool at an element offset, rounded if the pool holds bfloat16."""
    values = floats(source, dim)
    if is_bfloat16 != 0:
        bits = shorts(pool + offset * 2, dim)
        for i in range(dim):
            bits[i] = bfloat16_of_float(values[i])
    else:
        target = floats(pool + offset * 4, dim)
        for i in range(dim):
            target[i] = values[i]
