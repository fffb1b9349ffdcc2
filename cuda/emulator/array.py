"""Device arrays of the emulated GPU: memory that ends where an inaccessible page begins.

Owns its memory. Never converts dtypes; bfloat16 travels as uint16 bits.
"""

import ctypes
import math
import weakref
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cuda.emulator.errors import EmulatorError
from cuda.emulator.library import load_runtime


class DeviceArray:
    """A C-contiguous array in emulated device memory, aligned to 16 bytes. Made by the class methods.

    Attributes:
        shape, dtype: As NumPy has them.
        pointer: Device address; kernels take the array itself or `np.uint64(array.pointer)`.
        free: Gives the memory back; called anyway when the array is forgotten.
    """

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: DTypeLike, free: Callable[[], object]) -> None:
        self.pointer = pointer
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.free = weakref.finalize(self, free)

    @classmethod
    def empty(cls, shape: int | tuple[int, ...], dtype: DTypeLike) -> Self:
        """Uninitialised: filled with NaN patterns, and in check mode reading it before writing is an error.

        Raises:
            EmulatorError: The system gives no memory.
        """
        return cls._allocated((shape,) if isinstance(shape, int) else shape, dtype, initialised=False)

    @classmethod
    def from_numpy(cls, host: NDArray[Any]) -> Self:
        """A copy of a host array."""
        array = cls._allocated(host.shape, host.dtype, initialised=True)
        array.set(host)
        return array

    @classmethod
    def shared(cls, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, create: bool) -> Self:
        """Memory that other processes open under the same POSIX name; zeros when created. Its creator unlinks it.

        Raises:
            EmulatorError: The name exists already (create) or does not (open).
        """
        library = load_runtime()
        encoded = name.encode()
        address = library.emulator_allocate_shared(encoded, _nbytes(shape, dtype), int(create))
        if address is None:
            raise EmulatorError(f"cannot {'create' if create else 'open'} shared memory {name!r}")

        def free() -> None:
            library.emulator_free(address)
            if create:
                library.emulator_unlink_shared(encoded)

        return cls(address, shape, dtype, free)

    @classmethod
    def _allocated(cls, shape: tuple[int, ...], dtype: DTypeLike, *, initialised: bool) -> Self:
        library = load_runtime()
        nbytes = _nbytes(shape, dtype)
        address = library.emulator_allocate(nbytes, int(initialised))
        if address is None:
            raise EmulatorError(f"no memory for an emulated device array of {nbytes:,} bytes")
        return cls(address, shape, dtype, lambda: library.emulator_free(address))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return _nbytes(self.shape, self.dtype)

    def set(self, host: NDArray[Any]) -> None:
        """Copies a host array of the same shape and dtype into this one.

        Raises:
            ValueError: Shape or dtype differ.
            EmulatorError: Work that was given this array was submitted, and not waited for.
        """
        if host.shape != self.shape or host.dtype != self.dtype:
            raise ValueError(f"the array is {self.dtype}{self.shape}, the host's {host.dtype}{host.shape}")
        self._check_order(write=True)
        contiguous = np.ascontiguousarray(host)
        ctypes.memmove(self.pointer, contiguous.ctypes.data, self.nbytes)
        self.mark_initialised()

    def numpy(self) -> NDArray[Any]:
        """A copy on the host.

        Raises:
            EmulatorError: Work that writes it was submitted, and not waited for.
        """
        self._check_order(write=False)
        host = np.empty(self.shape, self.dtype)
        ctypes.memmove(host.ctypes.data, self.pointer, self.nbytes)
        return host

    def _check_order(self, *, write: bool) -> None:
        if not load_runtime().emulator_may_host_touch(self.pointer, int(write)):
            does, what = ("writes", "was given") if write else ("reads", "may write")
            raise EmulatorError(f"the host {does} an array that submitted work {what}, without waiting for that")

    def mark_initialised(self) -> None:
        """Tells check mode that all of it was written, in order with the kernels, by somebody it did not see."""
        load_runtime().emulator_mark_initialised(self.pointer)


def unlink_shared(name: str) -> None:
    """Takes the name away from shared memory, which lives on for those who have it; nothing if it has none."""
    load_runtime().emulator_unlink_shared(name.encode())


def _nbytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
