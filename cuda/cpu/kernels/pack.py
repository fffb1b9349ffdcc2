# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and sizes one by one
"""Weights into the panels that `cuda.cpu.kernels.tile` reads, exactly or quantised.

Exact packing looks for the narrowest format that gives back every float32 bit by bit: checkpoints are often bfloat16,
or come from 4- or 8-bit files, and a step costs what it reads. Quantised packing rounds groups of 32 values along K.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cuda.cpu.kernels.jit import device, kernel
from cuda.cpu.kernels.memory import (
    Address,
    Floats,
    Octets,
    Shorts,
    address,
    aligned_zeros,
    bfloat16_of_float,
    bits_of_float,
    float_of_half,
    floats,
    half_of_float,
    octets,
    shorts,
)
from cuda.cpu.kernels.tile import BFLOAT16, FLOAT32, GROUP, INT4, INT8, PANEL

Format = Literal["exact", "bfloat16", "int8", "int4"]

_DTYPES: dict[int, type[np.generic]] = {FLOAT32: np.float32, BFLOAT16: np.uint16, INT8: np.int8, INT4: np.uint8}
_SCALES = {INT8: PANEL, INT4: 2 * PANEL}  # float16 of a group
_PANELS_AT_ONCE = 8  # a piece of work of a thread


@dataclass(frozen=True)
class Packed:
    """A weight [N, K] as panels; the columns behind N are zero."""

    kind: int
    num_columns: int
    """N."""
    num_inputs: int
    """K."""
    panels: npt.NDArray[Any]
    """[N / 32 rounded up, …] as the kind says, C-contiguous, 64-byte aligned."""
    scales: npt.NDArray[np.uint16] | None
    """[panels, K / 32, 32 or 64] bits of float16."""

    @property
    def num_panels(self) -> int:
        """Panels of 32 columns."""
        return len(self.panels)

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        return self.panels.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """(kind, panels, bytes of one, scales, bytes of one panel's), in the order that instructions take them."""
        scale_bytes = 0 if self.scales is None else self.scales.strides[0]
        return self.kind, address(self.panels), self.panels.strides[0], address(self.scales), scale_bytes


def pack(weight: Floats, form: Format) -> Packed:
    """Pack a C-contiguous float32 [N, K]. Quantised formats need K to be a multiple of 32, else bfloat16 is used.

    A format that loses nothing is preferred to a quantised one of the same size or more.
    """
    grouped = weight.shape[1] % GROUP == 0
    attempts = {
        "exact": ((INT4, True), (BFLOAT16, True), (INT8, True), (FLOAT32, False)),
        "bfloat16": ((BFLOAT16, False),),
        "int8": ((INT4, True), (INT8, False), (BFLOAT16, False)),
        "int4": ((INT4, True), (INT4, False), (BFLOAT16, False)),
    }[form]
    for kind, exact in attempts:
        if grouped or kind not in _SCALES:
            packed = _pack(weight, kind, exact=exact)
            if packed is not None:
                return packed
    raise AssertionError(form)


def _pack(weight: Floats, kind: int, *, exact: bool) -> Packed | None:
    """None if `exact` and a value would change; the first panels are tried before memory is taken for the others."""
    columns, inputs = weight.shape
    count = -(-columns // PANEL)
    width = PANEL // 2 if kind == INT4 else PANEL
    panels = aligned_zeros((count, inputs, width), _DTYPES[kind])
    scales = aligned_zeros((count, inputs // GROUP, _SCALES[kind]), np.uint16) if kind in _SCALES else None

    def fill(first: int) -> bool:
        last = min(count, first + _PANELS_AT_ONCE)
        return fill_panels(
            kind, int(exact), address(weight), columns, inputs, address(panels), address(scales), first, last
        )  # fmt: skip

    if not fill(0):
        return None
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        if not all(threads.map(fill, range(_PANELS_AT_ONCE, count, _PANELS_AT_ONCE))):
            return None
    return Packed(kind, columns, inputs, panels, scales)


@kernel
def fill_panels(
    kind: int,
    exact: int,
    weight: Address,
    columns: int,
    inputs: int,
    panels: Address,
    scales: Address,
    first: int,
    last: int,
) -> bool:
    """Panels first … last - 1; False as soon as `exact` is broken."""
    step = PANEL // 2 if kind == INT4 else PANEL
    for panel in range(first, last):
        at = panel * inputs * step
        for column in range(min(PANEL, columns - panel * PANEL)):
            values = floats(weight + (panel * PANEL + column) * inputs * 4, inputs)
            if kind == FLOAT32:
                whole = floats(panels + at * 4, inputs * PANEL)
                for i in range(inputs):
                    whole[i * PANEL + column] = values[i]
            elif kind == BFLOAT16:
                half = shorts(panels + at * 2, inputs * PANEL)
                if not _fill_bfloat16(values, half, column, inputs, exact):
                    return False
            else:
                quants = octets(panels + at, inputs * step)
                factors = shorts(scales + panel * inputs * (4 if kind == INT4 else 2), inputs * 2)
                for group in range(inputs // GROUP):
                    part = values[group * GROUP : (group + 1) * GROUP]
                    if kind == INT4:
                        fine = _fill_int4(part, quants, factors, group, column, exact)
                    else:
                        fine = _fill_int8(part, quants, factors, group, column, exact)
                    if not fine:
                        return False
    return True


@device
def _fill_bfloat16(values: Floats, half: Shorts, column: int, inputs: int, exact: int) -> bool:
    for i in range(inputs):
        half[i * PANEL + column] = bfloat16_of_float(values[i])
        if exact != 0 and (bits_of_float(values[i]) & 0xFFFF) != 0:
            return False
    return True


@device
def _fill_int8(values: Floats, quants: Octets, factors: Shorts, group: int, column: int, exact: int) -> bool:
    largest = np.float32(0.0)
    for value in values:
        largest = max(largest, abs(value))
    factors[group * PANEL + column] = half_of_float(largest / np.float32(127.0))
    factor = float_of_half(factors[group * PANEL + column])
    inverse = np.float32(1.0) / factor if factor > 0 else np.float32(0.0)
    for i in range(GROUP):
        quant = np.float32(min(127.0, max(-127.0, np.rint(values[i] * inverse))))
        quants[(group * GROUP + i) * PANEL + column] = np.uint8(np.int8(quant))
        if exact != 0 and factor * quant != values[i]:
            return False
    return True


@device
def _fill_int4(values: Floats, quants: Octets, factors: Shorts, group: int, column: int, exact: int) -> bool:
    lowest, highest = values[0], values[0]
    for value in values:
        lowest = min(lowest, value)
        highest = max(highest, value)
    base = group * 2 * PANEL + column
    factors[base + PANEL] = half_of_float(lowest)
    least = float_of_half(factors[base + PANEL])
    factors[base] = half_of_float((highest - least) / np.float32(15.0))
    factor = float_of_half(factors[base])
    inverse = np.float32(1.0) / factor if factor > 0 else np.float32(0.0)
    for i in range(GROUP):
        quant = np.float32(min(15.0, max(0.0, np.rint((values[i] - least) * inverse))))
        place = (group * GROUP + i) * (PANEL // 2) + column % 16
        quants[place] |= np.uint8(np.int32(quant) << (column // 16 * 4))
        if exact != 0 and factor * quant + least != values[i]:
            return False
    return True
