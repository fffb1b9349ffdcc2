"""Device arrays of the emulated GPU: memory that ends where an inaccessible page begins.

Owns its memory. Never converts dtypes; bfloat16 travels as uint16 bits.
"""

import ctypes
import math
import weakref
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cuda.emulator.errors import EmulatorError
from cuda.emulator.runtime import load_runtime


class DeviceArray:
    """A C-contiguous array in emulated device memory, aligned to 16 bytes.

    Attributes:
        shape, dtype: As NumPy has them.
        pointer: Device address; kernels take the array itself or `np.uint64(array.pointer)`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, *, initialised: bool = False) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        library = load_runtime()
        address = library.emulator_allocate(self.nbytes, int(initialised))
        if address is None:
            raise EmulatorError(f"no memory for an emulated device array of {self.nbytes:,} bytes")
        self.pointer: int = address
        self.free = weakref.finalize(self, library.emulator_free, address)

    @classmethod
    def empty(cls, shape: int | tuple[int, ...], dtype: DTypeLike) -> Self:
        """Uninitialised: filled with NaN patterns, and in check mode reading it before writing is an error."""
        return cls((shape,) if isinstance(shape, int) else shape, dtype)

    @classmethod
    def from_numpy(cls, host: NDArray[Any]) -> Self:
        """A copy of a host array."""
        array = cls(host.shape, host.dtype, initialised=True)
        array.set(host)
        return array

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def set(self, host: NDArray[Any]) -> None:
        """Copies a host array of the same shape and dtype into this one.

        Raises:
            ValueError: Shape or dtype differ.
        """
        if host.shape != self.shape or host.dtype != self.dtype:
            raise ValueError(f"the array is {self.dtype}{self.shape}, the host's {host.dtype}{host.shape}")
        contiguous = np.ascontiguousarray(host)
        ctypes.memmove(self.pointer, contiguous.ctypes.data, self.nbytes)
        load_runtime().emulator_mark_initialised(self.pointer)

    def numpy(self) -> NDArray[Any]:
        """A copy on the host."""
        host = np.empty(self.shape, self.dtype)
        ctypes.memmove(host.ctypes.data, self.pointer, self.nbytes)
        return host

    def is_intact(self) -> bool:
        """False if a kernel wrote between the array's end and its inaccessible page (less than 16 bytes)."""
        return bool(load_runtime().emulator_slack_is_whole(self.pointer))
