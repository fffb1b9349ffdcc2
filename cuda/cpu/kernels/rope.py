# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""Query and key norms, rotary positions, and the write of new keys and values into their pages.

The qkv row is rotated in place, where attention reads the queries. Pool layout: `[page, 2, kv_head, slot, head_dim]`.
"""

from typing import NamedTuple

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Address, Floats, bfloat16_of_float, copy, fetch_add, floats, ints, longs, shorts
from cuda.cpu.kernels.rows import normalise


class Shape(NamedTuple):
    """What attention knows of a model; kept as an int64 array in this order."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    max_pages: int
    """Entries from one row slot's page table to the next."""
    item_bytes: int
    """4: the pool holds float32; 2: bfloat16."""
    window: int
    """Latest positions that a token sees, itself included; 0 is all."""


@device
def load_shape(at: Address) -> Shape:
    """Read the int64 array."""
    n = longs(at, 7)
    return Shape(n[0], n[1], n[2], n[3], n[4], n[5], n[6])


@device
def rope_and_store(
    next_row: Address,
    rows: int,
    slots: Address,
    positions: Address,
    page_tables: Address,
    shape_at: Address,
    qkv: Address,
    ldx: int,
    pool: Address,
    table: Address,
    q_norm: Address,
    k_norm: Address,
    eps: float,
) -> int:
    """`table` holds [cos | sin] of each position, D float32; `q_norm` and `k_norm` are 0 where a model has none."""
    shape = load_shape(shape_at)
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    slot_of, position_of = ints(slots, rows), ints(positions, rows)
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        position = position_of[row]
        page = ints(page_tables + slot_of[row] * shape.max_pages * 4, shape.max_pages)[position // shape.page_size]
        angles = floats(table + position * dim * 4, dim)
        source = qkv + row * ldx
        for head in range(heads + kv_heads):
            values = floats(source + head * dim * 4, dim)
            if q_norm != 0:
                normalise(values, floats(q_norm if head < heads else k_norm, dim), values, dim, eps)
            _rotate(values, angles, dim // 2)
        for head in range(kv_heads):
            key = ((page * 2 * kv_heads + head) * shape.page_size + position % shape.page_size) * dim
            value = key + kv_heads * shape.page_size * dim
            _store(source + (heads + head) * dim * 4, pool, key, dim, shape.item_bytes)
            _store(source + (heads + kv_heads + head) * dim * 4, pool, value, dim, shape.item_bytes)
    return mine


@device
def _rotate(values: Floats, angles: Floats, half: int) -> None:
    for i in range(half):
        first = values[i]
        second = values[half + i]
        cosine = angles[i]
        sine = angles[half + i]
        values[i] = first * cosine - second * sine
        values[half + i] = second * cosine + first * sine


@device
def _store(source: Address, pool: Address, offset: int, dim: int, item_bytes: int) -> None:
    """Copy one head's row to an offset (in values) of the pool, rounded if it holds bfloat16."""
    if item_bytes == 2:
        values, bits = floats(source, dim), shorts(pool + offset * 2, dim)
        for i in range(dim):
            bits[i] = bfloat16_of_float(values[i])
    else:
        copy(source, pool + offset * 4, dim)
