# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""Ops that treat every token (or sampled row) by itself: embedding, sums, add + RMSNorm, SiLU·mul, picking rows.

What several ranks hold parts of is given as the addresses of all parts, in the order of ranks: summed in that order,
in float32, it is the same bits on every rank. Rows are shared out one by one; strides in bytes, activations float32.
Formulas: `cuda.kernels.reference`.
"""

import math

import numpy as np

from cuda.cpu.kernels.jit import device, fast_device
from cuda.cpu.kernels.math import exp
from cuda.cpu.kernels.memory import (
    Address,
    Floats,
    copy,
    fetch_add,
    fill,
    float_of_bfloat16,
    float_of_half,
    floats,
    ints,
    longs,
    octets,
    shorts,
)
from cuda.cpu.kernels.tile import BFLOAT16, FLOAT32, GROUP, INT8, PANEL

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@device
def embed(
    next_row: Address,
    rows: int,
    slots: Address,
    positions: Address,
    tokens: Address,
    tokens_stride: int,
    kind: int,
    w: Address,
    panel_bytes: int,
    scales: Address,
    scale_bytes: int,
    width: int,
    out: Address,
    ldo: int,
    first_token: int,
    num_tokens: int,
) -> int:
    """out[t] = row tokens[slots[t], positions[t]] of a packed weight [V, width]: one column of a panel.

    The weight holds `num_tokens` tokens from `first_token` on; any other token's row is zero.
    """
    slot_of = ints(slots, rows)
    position_of = ints(positions, rows)
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        token = ints(tokens + slot_of[row] * tokens_stride, position_of[row] + 1)[position_of[row]] - first_token
        if token < 0 or token >= num_tokens:
            fill(out + row * ldo, width, _ZERO)
            continue
        panel = token // PANEL
        _column(
            token % PANEL,
            kind,
            w + panel * panel_bytes,
            scales + panel * scale_bytes,
            width,
            floats(out + row * ldo, width),
        )
    return mine


@device
def _column(column: int, kind: int, w: Address, scales: Address, k: int, out: Floats) -> None:
    if kind == FLOAT32:
        values = floats(w, k * PANEL)
        for i in range(k):
            out[i] = values[i * PANEL + column]
    elif kind == BFLOAT16:
        bits = shorts(w, k * PANEL)
        for i in range(k):
            out[i] = float_of_bfloat16(bits[i * PANEL + column])
    elif kind == INT8:
        factors = shorts(scales, k)
        quants = octets(w, k * PANEL)
        for i in range(k):
            quant = np.float32(np.int8(quants[i * PANEL + column]))
            out[i] = quant * float_of_half(factors[i // GROUP * PANEL + column])
    else:
        factors = shorts(scales, 2 * k)
        quants = octets(w, k * 16)
        for i in range(k):
            pair = np.int32(quants[i * 16 + column % 16])
            quant = np.float32((pair >> (column // 16 * 4)) & 15)
            base = i // GROUP * 2 * PANEL + column
            out[i] = quant * float_of_half(factors[base]) + float_of_half(factors[base + PANEL])


@device
def sum_parts(
    next_row: Address, rows: int, parts: Address, num_parts: int, out: Address, width: int, stride: int
) -> int:
    """Out = the sum of `num_parts` buffers, whose addresses are at `parts`."""
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        _add_up(parts, num_parts, row * stride, out + row * stride, width)
    return mine


@device
def _add_up(parts: Address, num_parts: int, offset: int, out: Address, width: int) -> None:
    part_of, total = longs(parts, num_parts), floats(out, width)
    copy(part_of[0] + offset, out, width)
    for part in range(1, num_parts):
        more = floats(part_of[part] + offset, width)
        for i in range(width):
            total[i] += more[i]


@device
def add_rms_norm(
    next_row: Address,
    rows: int,
    residual: Address,
    deltas: Address,
    num_deltas: int,
    weight: Address,
    out: Address,
    width: int,
    stride: int,
    eps: float,
) -> int:
    """Residual += the sum of `num_deltas` buffers; out = residual / rms(residual) * weight."""
    scale = floats(weight, width)
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        values, result = floats(residual + row * stride, width), floats(out + row * stride, width)
        if num_deltas > 0:
            _add_up(deltas, num_deltas, row * stride, out + row * stride, width)
            for i in range(width):
                values[i] += result[i]
        normalise(values, scale, result, width, eps)
    return mine


@device
def normalise(values: Floats, weight: Floats, out: Floats, width: int, eps: float) -> None:
    """Out = values / sqrt(mean(values²) + eps) * weight; `out` may be `values`."""
    factor = np.float32(1.0 / math.sqrt(_sum_of_squares(values, width) / width + eps))
    for i in range(width):
        out[i] = values[i] * factor * weight[i]


@fast_device
def _sum_of_squares(values: Floats, width: int) -> np.float32:
    total = _ZERO
    for i in range(width):
        total += values[i] * values[i]
    return total


@device
def silu_mul(next_row: Address, rows: int, gate_up: Address, ldx: int, out: Address, ldo: int, width: int) -> int:
    """Out = gate * sigmoid(gate) * up, where a row holds [gate; up]."""
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        gate = floats(gate_up + row * ldx, width)
        up = floats(gate_up + row * ldx + 4 * width, width)
        target = floats(out + row * ldo, width)
        for i in range(width):
            target[i] = gate[i] / (_ONE + exp(-gate[i])) * up[i]
    return mine


@device
def take_rows(
    next_row: Address, rows: int, indexes: Address, x: Address, ldx: int, out: Address, ldo: int, width: int
) -> int:
    """out[i] = x[indexes[i]]."""
    index_of = ints(indexes, rows)
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        copy(x + index_of[row] * ldx, out + row * ldo, width)
    return mine
