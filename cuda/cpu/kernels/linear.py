# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""y = x @ W.T + b over packed panels (`cuda.cpu.kernels.pack`), shared out panel by panel.

A panel stays in the core's cache while all rows pass it, so a step reads each weight from memory once.
"""

from collections.abc import Callable
from typing import NamedTuple

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Address, copy, fetch_add
from cuda.cpu.kernels.tile import BFLOAT16, FLOAT32, INT4, INT8, make_tile


class Product(NamedTuple):
    """Where some rows, a panel and their product lie; strides in bytes."""

    x: Address
    ldx: int
    w: Address
    ldw: int
    """From one k to the next."""
    scales: Address
    k: int
    out: Address
    ldo: int
    add: int
    """1: to what `out` holds."""


@device
def linear(
    next_panel: Address,
    rows: int,
    x: Address,
    ldx: int,
    kind: int,
    w: Address,
    panel_bytes: int,
    scales: Address,
    scale_bytes: int,
    k: int,
    num_panels: int,
    bias: Address,
    out: Address,
    ldo: int,
) -> int:
    """Take panels until none is left. Strides in bytes; `bias` 0 is none."""
    mine = 0
    while True:
        panel = fetch_add(next_panel, 1)
        if panel >= num_panels:
            break
        mine += 1
        target = out + panel * 128
        if bias != 0:
            _put_bias(rows, bias + panel * 128, target, ldo)
        panel_w, panel_scales = w + panel * panel_bytes, scales + panel * scale_bytes
        p = Product(x, ldx, panel_w, panel_bytes // k, panel_scales, k, target, ldo, 1 if bias != 0 else 0)
        if kind == FLOAT32:
            multiply_floats(rows, p)
        elif kind == BFLOAT16:
            multiply_halves(rows, p)
        elif kind == INT8:
            _multiply_bytes(rows, p)
        else:
            _multiply_nibbles(rows, p)
    return mine


@device
def _put_bias(rows: int, bias: Address, out: Address, ldo: int) -> None:
    for row in range(rows):
        copy(bias, out + row * ldo, 32)


def _make_multiply(kind: int) -> Callable[[int, Product], None]:
    """`multiply(rows, product)`: all rows times one panel, in tiles of few sizes."""
    # 12 rows need 24 of 32 vector registers; the rest holds weights and what unpacks them.
    twelve, eight, four, three, two, one = (make_tile(kind, rows) for rows in (12, 8, 4, 3, 2, 1))

    @device
    def multiply(rows: int, p: Product) -> None:
        row = 0
        while row < rows:
            left = rows - row
            x, out = p.x + row * p.ldx, p.out + row * p.ldo
            if left >= 12:
                twelve(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 12
            elif left >= 8:
                eight(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 8
            elif left >= 4:
                four(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 4
            elif left == 3:
                three(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 3
            elif left == 2:
                two(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 2
            else:
                one(x, p.ldx, p.w, p.ldw, p.scales, p.k, out, p.ldo, p.add)
                row += 1

    return multiply


multiply_floats, multiply_halves = _make_multiply(FLOAT32), _make_multiply(BFLOAT16)
_multiply_bytes, _multiply_nibbles = _make_multiply(INT8), _make_multiply(INT4)
