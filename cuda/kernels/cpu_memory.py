"""Memory as CPU kernels see it: 64-byte aligned arrays, arrays at addresses, atomic counters, bit casts.

Kernels take addresses as int64, because a step is a list of integers (`cuda.kernels.cpu_program`). Nothing here is checked:
whoever makes an address keeps its array alive.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cuda.kernels.cpu_jit import device

ALIGNMENT = 64
"""Bytes: one cache line and one vector register."""

_INT64 = ir.IntType(64)


def aligned_zeros(
    shape: int | Sequence[int], dtype: type[np.generic] | np.dtype[Any]
) -> np.ndarray[Any, np.dtype[Any]]:
    """A zeroed array that starts on a cache line; its memory is touched only where it is used."""
    item = np.dtype(dtype)
    size = int(np.prod(shape)) * item.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size].view(item).reshape(shape)


def address(array: np.ndarray[Any, np.dtype[Any]] | None) -> int:
    """Where an array's first element lies; 0 for None."""
    return 0 if array is None else int(array.ctypes.data)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, _address: Any) -> Any:  # noqa: ANN401 - numba's own objects
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@device
def floats(at: int, count: int) -> Any:  # noqa: ANN401 - float32 array
    """`count` float32 at an address."""
    return numba.carray(_pointer(at), (count,), np.float32)


@device
def doubles(at: int, count: int) -> Any:  # noqa: ANN401 - float64 array
    """`count` float64 at an address."""
    return numba.carray(_pointer(at), (count,), np.float64)


@device
def ints(at: int, count: int) -> Any:  # noqa: ANN401 - int32 array
    """`count` int32 at an address."""
    return numba.carray(_pointer(at), (count,), np.int32)


@device
def longs(at: int, count: int) -> Any:  # noqa: ANN401 - int64 array
    """`count` int64 at an address."""
    return numba.carray(_pointer(at), (count,), np.int64)


@device
def shorts(at: int, count: int) -> Any:  # noqa: ANN401 - uint16 array
    """`count` uint16 (the bits of bfloat16 or float16) at an address."""
    return numba.carray(_pointer(at), (count,), np.uint16)


@device
def octets(at: int, count: int) -> Any:  # noqa: ANN401 - uint8 array
    """`count` bytes at an address."""
    return numba.carray(_pointer(at), (count,), np.uint8)


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(_context: Any, _at: Any, _value: Any) -> Any:  # noqa: ANN401
    """Add to the int64 at an address, for all threads at once; returns what was there before."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _INT64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(_context: Any, _at: Any) -> Any:  # noqa: ANN401
    """The int64 at an address, with everything its writer wrote before."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.load_atomic(builder.inttoptr(args[0], _INT64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


def _bit_cast(source: Any, target: Any) -> Callable[..., Any]:  # noqa: ANN401
    @intrinsic  # type: ignore[untyped-decorator]
    def cast(_context: Any, _value: Any) -> Any:  # noqa: ANN401
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return cast  # type: ignore[no-any-return]


float_of_bits = _bit_cast(types.int32, types.float32)
bits_of_float = _bit_cast(types.float32, types.int32)


@device
def float_of_bfloat16(value: Any) -> Any:  # noqa: ANN401 - uint16 -> float32
    """Exact."""
    return float_of_bits(np.int32(np.uint32(value) << np.uint32(16)))


@device
def bfloat16_of_float(value: Any) -> Any:  # noqa: ANN401 - float32 -> uint16
    """Rounded to nearest, ties to even."""
    bits = np.uint32(bits_of_float(value))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@intrinsic  # type: ignore[untyped-decorator]
def float_of_half(_context: Any, _bits: Any) -> Any:  # noqa: ANN401
    """The float32 that float16 bits (uint16) stand for; exact."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[untyped-decorator]
def half_of_float(_context: Any, _value: Any) -> Any:  # noqa: ANN401
    """Float16 bits (uint16) of a float32, rounded to nearest, ties to even."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate
