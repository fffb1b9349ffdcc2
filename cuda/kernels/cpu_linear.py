"""y = x @ W.T + b over packed panels (`cuda.kernels.cpu_pack`), shared out panel by panel.

A panel stays in the core's cache while all rows pass it, so a step reads each weight from memory once.
"""

from cuda.kernels.cpu_jit import device
from cuda.kernels.cpu_memory import fetch_add, floats
from cuda.kernels.cpu_tile import BFLOAT16, FLOAT32, INT4, INT8, make_expand, make_tile

_float12, _float8, _float6, _float4, _float3, _float2, _float1 = (
    make_tile(FLOAT32, rows) for rows in (12, 8, 6, 4, 3, 2, 1)
)
_half12, _half8, _half4, _half2, _half1 = (make_tile(BFLOAT16, rows) for rows in (12, 8, 4, 2, 1))
_byte8, _byte4, _byte2, _byte1 = (make_tile(INT8, rows) for rows in (8, 4, 2, 1))
_nibble8, _nibble4, _nibble2, _nibble1 = (make_tile(INT4, rows) for rows in (8, 4, 2, 1))
_expand_byte, _expand_nibble = make_expand(INT8), make_expand(INT4)

EXPAND_ROWS = 20
"""From here on it pays to make float32 of a quantised panel once, in the core's cache."""


@device
def linear(
    next_panel, rows, x, ldx, kind, w, panel_bytes, scales, scale_bytes, k, num_panels, bias, out, ldo, panel_scratch
):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """Take panels until none is left. Strides in bytes; `bias` 0 is none; `panel_scratch` holds [K, 32] float32."""
    while True:
        panel = fetch_add(next_panel, 1)
        if panel >= num_panels:
            break
        panel_out = out + panel * 128
        add = 0
        if bias != 0:
            add = 1
            values = floats(bias + panel * 128, 32)
            for row in range(rows):
                target = floats(panel_out + row * ldo, 32)
                for column in range(32):
                    target[column] = values[column]
        multiply(
            rows,
            x,
            ldx,
            kind,
            w + panel * panel_bytes,
            scales + panel * scale_bytes,
            k,
            panel_out,
            ldo,
            add,
            panel_scratch,
        )


@device
def multiply(rows, x, ldx, kind, w, scales, k, out, ldo, add, panel_scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """All rows times one panel."""
    if kind == FLOAT32:
        multiply_floats(rows, x, ldx, w, 128, k, out, ldo, add)
    elif kind == BFLOAT16:
        _multiply_halves(rows, x, ldx, w, k, out, ldo, add)
    elif rows >= EXPAND_ROWS:
        if kind == INT8:
            _expand_byte(w, scales, k, panel_scratch)
        else:
            _expand_nibble(w, scales, k, panel_scratch)
        multiply_floats(rows, x, ldx, panel_scratch, 128, k, out, ldo, add)
    elif kind == INT8:
        _multiply_bytes(rows, x, ldx, w, scales, k, out, ldo, add)
    else:
        _multiply_nibbles(rows, x, ldx, w, scales, k, out, ldo, add)


@device
def multiply_floats(rows, x, ldx, w, ldw, k, out, ldo, add):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
    """A FLOAT32 panel whose rows lie `ldw` bytes apart."""
    row = 0
    while row < rows:
        left = rows - row
        source = x + row * ldx
        target = out + row * ldo
        if left >= 12:
            _float12(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 12
        elif left >= 8:
            _float8(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 8
        elif left >= 6:
            _float6(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 6
        elif left >= 4:
            _float4(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 4
        elif left == 3:
            _float3(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 3
        elif left == 2:
            _float2(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 2
        else:
            _float1(source, ldx, w, ldw, 0, k, target, ldo, add)
            row += 1


@device
def _multiply_halves(rows, x, ldx, w, k, out, ldo, add):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    row = 0
    while row < rows:
        left = rows - row
        source = x + row * ldx
        target = out + row * ldo
        if left >= 12:
            _half12(source, ldx, w, 64, 0, k, target, ldo, add)
            row += 12
        elif left >= 8:
            _half8(source, ldx, w, 64, 0, k, target, ldo, add)
            row += 8
        elif left >= 4:
            _half4(source, ldx, w, 64, 0, k, target, ldo, add)
            row += 4
        elif left >= 2:
            _half2(source, ldx, w, 64, 0, k, target, ldo, add)
            row += 2
        else:
            _half1(source, ldx, w, 64, 0, k, target, ldo, add)
            row += 1


@device
def _multiply_bytes(rows, x, ldx, w, scales, k, out, ldo, add):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    row = 0
    while row < rows:
        left = rows - row
        source = x + row * ldx
        target = out + row * ldo
        if left >= 8:
            _byte8(source, ldx, w, 32, scales, k, target, ldo, add)
            row += 8
        elif left >= 4:
            _byte4(source, ldx, w, 32, scales, k, target, ldo, add)
            row += 4
        elif left >= 2:
            _byte2(source, ldx, w, 32, scales, k, target, ldo, add)
            row += 2
        else:
            _byte1(source, ldx, w, 32, scales, k, target, ldo, add)
            row += 1


@device
def _multiply_nibbles(rows, x, ldx, w, scales, k, out, ldo, add):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913
    row = 0
    while row < rows:
        left = rows - row
        source = x + row * ldx
        target = out + row * ldo
        if left >= 8:
            _nibble8(source, ldx, w, 16, scales, k, target, ldo, add)
            row += 8
        elif left >= 4:
            _nibble4(source, ldx, w, 16, scales, k, target, ldo, add)
            row += 4
        elif left >= 2:
            _nibble2(source, ldx, w, 16, scales, k, target, ldo, add)
            row += 2
        else:
            _nibble1(source, ldx, w, 16, scales, k, target, ldo, add)
            row += 1
