# ruff: noqa: ANN401 - values, types and builders are llvmlite's, which has no types
"""Memory as CPU kernels see it: 64-byte aligned arrays, arrays at addresses, atomic counters, bit casts.

Kernels take addresses as int64, because a step is a list of integers (`cuda.cpu.kernels.program`). Nothing here is
checked: whoever makes an address keeps its array alive.
"""

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types  # type: ignore[attr-defined]  # re-exported without __all__
from numba.core import cgutils

from cuda.cpu.kernels.jit import device, instruction

Address = int
"""Where something lies, int64."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.uint16]
Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
ALIGNMENT = 64
"""Bytes: one cache line and one vector register."""

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}.get(platform.machine())


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


@instruction
def _pointer(_context: Any, _address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _array_at(dtype: type[np.generic]) -> Callable[[Address, int], Any]:
    """A function of an address and a count: the array of so many values that lies there."""

    @device
    def array_at(at: Address, count: int) -> Any:
        return carray(_pointer(at), (count,), dtype)

    return array_at


floats: Callable[[Address, int], Floats] = _array_at(np.float32)
doubles: Callable[[Address, int], Doubles] = _array_at(np.float64)
ints: Callable[[Address, int], Ints] = _array_at(np.int32)
longs: Callable[[Address, int], Longs] = _array_at(np.int64)
shorts: Callable[[Address, int], Shorts] = _array_at(np.uint16)
"""The bits of bfloat16 or float16."""
octets: Callable[[Address, int], Octets] = _array_at(np.uint8)


@device
def fill(at: Address, count: int, value: np.float32) -> None:
    """Set `count` float32 at an address."""
    values = floats(at, count)
    for i in range(count):
        values[i] = value


@device
def copy(source: Address, target: Address, count: int) -> None:
    """Copy `count` float32 from address to address."""
    values, copied = floats(source, count), floats(target, count)
    for i in range(count):
        copied[i] = values[i]


@instruction
def fetch_add(_context: Any, _at: Any, _value: Any) -> Any:
    """Add to the int64 at an address, for all threads at once; returns what was there before."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _INT64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


def _load_acquire(number: Any, result: Any) -> Callable[..., Any]:
    """The integer at an address, with everything its writer wrote before, in whatever process."""

    @instruction
    def load(_context: Any, _at: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.load_atomic(builder.inttoptr(args[0], number.as_pointer()), "acquire", number.width // 8)

        return result(types.int64), generate

    return load


load_acquire = _load_acquire(_INT64, types.int64)
load_acquire_int = _load_acquire(_INT32, types.int32)


@instruction
def store_release_int(_context: Any, _at: Any, _value: Any) -> Any:
    """Set the int32 at an address after everything this thread read and wrote before."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _INT32.as_pointer()), "release", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), generate


@instruction
def pause(_context: Any) -> Any:
    """Tell the core that this thread only waits, where there is an instruction for it."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        if _PAUSE is not None:
            name, numbers = _PAUSE
            call_llvm(builder, name, ir.VoidType(), [_INT32(number) for number in numbers])
        return context.get_dummy_value()

    return types.void(), generate


@instruction
def prefetch(_context: Any, _at: Any) -> Any:
    """Ask for the cache line at an address; nothing waits for it."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit_prefetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def emit_prefetch(builder: Any, at: Any) -> None:
    """The call that `prefetch` becomes."""
    pointer = builder.inttoptr(at, cgutils.voidptr_t)
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _INT32(0), _INT32(2), _INT32(1)])


def call_llvm(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    """A call of one of LLVM's own functions."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)  # type: ignore[no-untyped-call]


def _bit_cast(source: Any, target: Any) -> Callable[..., Any]:
    @instruction
    def cast(_context: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return cast


float_of_bits = _bit_cast(types.int32, types.float32)
bits_of_float = _bit_cast(types.float32, types.int32)


@device
def float_of_bfloat16(value: np.uint16) -> np.float32:
    """Exact."""
    result: np.float32 = float_of_bits(np.int32(np.uint32(value) << np.uint32(16)))
    return result


@device
def bfloat16_of_float(value: np.float32) -> np.uint16:
    """Rounded to nearest, ties to even."""
    bits = np.uint32(bits_of_float(value))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@device
def widened(at: Address, item_bytes: int) -> np.float32:
    """The bfloat16 (`item_bytes` 2) or float32 (4) at an address."""
    return float_of_bfloat16(shorts(at, 1)[0]) if item_bytes == 2 else floats(at, 1)[0]


@device
def widen(source: Address, target: Address, count: int, item_bytes: int) -> None:
    """Copy `count` bfloat16 (`item_bytes` 2) or float32 (4) to float32."""
    if item_bytes == 4:
        copy(source, target, count)
        return
    bits, values = shorts(source, count), floats(target, count)
    for i in range(count):
        values[i] = float_of_bfloat16(bits[i])


@instruction
def float_of_half(_context: Any, _bits: Any) -> Any:
    """The float32 that float16 bits (uint16) stand for; exact."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@instruction
def half_of_float(_context: Any, _value: Any) -> Any:
    """Float16 bits (uint16) of a float32, rounded to nearest, ties to even."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate
