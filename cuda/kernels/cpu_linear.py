# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""y = x @ W.T + b over packed panels (`cuda.kernels.cpu_pack`), shared out panel by panel.

A panel stays in the core's cache while all rows pass it, so a step reads each weight from memory once.
"""

from collections.abc import Callable

from cuda.kernels.cpu_jit import device
from cuda.kernels.cpu_memory import Address, fetch_add, floats
from cuda.kernels.cpu_tile import BFLOAT16, FLOAT32, INT4, INT8, make_expand, make_tile

EXPAND_ROWS = 20
"""From here on it pays to make float32 of a quantised panel once, in the core's cache."""

_expand_byte, _expand_nibble = make_expand(INT8), make_expand(INT4)


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
    expanded: Address,
) -> None:
    """Take panels until none is left. Strides in bytes; `bias` 0 is none; `expanded` has room for [K, 32] float32."""
    while True:
        panel = fetch_add(next_panel, 1)
        if panel >= num_panels:
            break
        target = out + panel * 128
        if bias != 0:
            _put_bias(rows, bias + panel * 128, target, ldo)
        panel_w, panel_scales = w + panel * panel_bytes, scales + panel * scale_bytes
        add = 1 if bias != 0 else 0
        if kind == FLOAT32:
            multiply_floats(rows, x, ldx, panel_w, 128, 0, k, target, ldo, add)
        elif kind == BFLOAT16:
            multiply_halves(rows, x, ldx, panel_w, 64, 0, k, target, ldo, add)
        elif rows >= EXPAND_ROWS:
            if kind == INT8:
                _expand_byte(panel_w, panel_scales, k, expanded)
            else:
                _expand_nibble(panel_w, panel_scales, k, expanded)
            multiply_floats(rows, x, ldx, expanded, 128, 0, k, target, ldo, add)
        elif kind == INT8:
            _multiply_bytes(rows, x, ldx, panel_w, 32, panel_scales, k, target, ldo, add)
        else:
            _multiply_nibbles(rows, x, ldx, panel_w, 16, panel_scales, k, target, ldo, add)


@device
def _put_bias(rows: int, bias: Address, out: Address, ldo: int) -> None:
    values = floats(bias, 32)
    for row in range(rows):
        target = floats(out + row * ldo, 32)
        for column in range(32):
            target[column] = values[column]


def _make_multiply(kind: int, most_rows: int) -> Callable[..., None]:
    """`multiply(rows, x, ldx, w, ldw, scales, k, out, ldo, add)`: all rows times one panel, in tiles of few sizes."""
    most, eight, four, three, two, one = (make_tile(kind, rows) for rows in (most_rows, 8, 4, 3, 2, 1))

    @device
    def multiply(
        rows: int,
        x: Address,
        ldx: int,
        w: Address,
        ldw: int,
        scales: Address,
        k: int,
        out: Address,
        ldo: int,
        add: int,
    ) -> None:
        row = 0
        while row < rows:
            left = rows - row
            source, target = x + row * ldx, out + row * ldo
            if left >= most_rows:
                most(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += most_rows
            elif left >= 8:
                eight(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += 8
            elif left >= 4:
                four(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += 4
            elif left == 3:
                three(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += 3
            elif left == 2:
                two(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += 2
            else:
                one(source, ldx, w, ldw, scales, k, target, ldo, add)
                row += 1

    return multiply


# As many rows as leave room in 32 vector registers for weights, and for what unpacks them.
multiply_floats, multiply_halves = _make_multiply(FLOAT32, 12), _make_multiply(BFLOAT16, 12)
_multiply_bytes, _multiply_nibbles = _make_multiply(INT8, 8), _make_multiply(INT4, 8)
