# ruff: noqa: PLR0913, PLR0917 - kernels take arrays and sizes one by one
"""The cut that top-k and top-p share: of items in order (logit down, index up), keep those before a budget is spent.

Exact, without sorting the vocabulary: three passes over the bits of the logits find the value at the edge, a fourth
shares out the ties there by index.
"""

import numpy as np

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Doubles, Floats, Ints, bits_of_float

BINS = 2048
"""Of one pass; thread scratch holds that many float64."""

_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


@device
def order_key(value: np.float32) -> np.uint32:
    """uint32 that orders like the float32; -0 and +0 tie."""
    bits = np.uint32(bits_of_float(value + np.float32(0.0)))
    return bits ^ (_ALL if bits & _SIGN else _SIGN)


@device
def cut(logits: Floats, weights: Floats, kept: Ints, count: int, budget: float, bins: Doubles) -> int:
    """Leave in `kept[:count]` (ascending indexes) the items whose predecessors weigh less than `budget`; their number.

    `weights` of length 0: each item weighs 1. The first item always stays.
    """
    prefix, spent = np.uint32(0), 0.0
    for depth in range(3):
        shift = np.uint32(21 - 11 * depth) if depth < 2 else np.uint32(0)
        width = 11 if depth < 2 else 10
        _fill(logits, weights, kept, count, prefix, depth, shift, width, bins)
        chosen = _edge(bins, 1 << width, spent, budget)
        for higher in range(chosen + 1, 1 << width):
            spent += bins[higher]
        prefix = (prefix << np.uint32(width)) | np.uint32(chosen)
    result = 0
    for i in range(count):
        token = kept[i]
        key = order_key(logits[token])
        if key > prefix or (key == prefix and (spent < budget or result == 0)):
            kept[result] = token
            result += 1
        if key == prefix:
            spent += np.float64(weights[token]) if weights.size else 1.0
    return result


@device
def _fill(
    logits: Floats,
    weights: Floats,
    kept: Ints,
    count: int,
    prefix: np.uint32,
    depth: int,
    shift: np.uint32,
    width: int,
    bins: Doubles,
) -> None:
    for i in range(1 << width):
        bins[i] = 0.0
    above = shift + np.uint32(width)
    mask = np.uint32((1 << width) - 1)
    for i in range(count):
        token = kept[i]
        key = order_key(logits[token])
        if depth == 0 or (key >> above) == prefix:
            bins[(key >> shift) & mask] += np.float64(weights[token]) if weights.size else 1.0


@device
def _edge(bins: Doubles, size: int, spent: float, budget: float) -> int:
    """The highest bin in which the budget runs out, else the lowest that weighs anything."""
    lowest = 0
    for offset in range(size):
        chosen = size - 1 - offset
        if bins[chosen] > 0:
            lowest = chosen
            spent += bins[chosen]
            if spent >= budget:
                break
    return lowest
