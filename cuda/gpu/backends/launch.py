"""Launches of a loaded kernel, checked before the driver sees them.

CuPy turns Python's numbers into 64 bits and shrinks cooperative grids without a word, and the driver reads as many
bytes of each argument as the kernel declares: a wrong one is silent. So all of it is checked here. Never imports CuPy.
"""

from collections.abc import Sequence
from math import prod
from typing import Protocol

import numpy as np
import torch

from cuda.gpu.backends.cubins import CompiledKernel, Parameter
from cuda.kernels.backend import Argument

MAX_THREADS = 1024
MAX_Z_THREADS = 64
MAX_GRID = (2**31 - 1, 65535, 65535)
DEFAULT_SHARED_BYTES = 48 << 10
"""Shared memory that a block may have, static and dynamic together, without asking."""
_POINTER = Parameter("i", 8)
_KINDS = {"i": "i", "u": "i", "b": "i", "f": "f", "V": "s"}

Size = tuple[int, int, int]


class LoadedKernel(Protocol):
    """A kernel in a device's memory, as the driver offers it."""

    def launch(self, grid: Size, block: Size, args: Sequence[np.generic], shared_bytes: int) -> None:
        """Queue it; nothing is checked."""

    def allow_shared(self, num_bytes: int) -> None:
        """Let later launches have so much dynamic shared memory."""

    def max_resident_blocks(self, num_threads: int, shared_bytes: int) -> int:
        """How many blocks of that size the device runs at once."""


class GpuLaunch:
    """See `Launch`.

    Args:
        name: What errors call it.
        kernel: What the compiler said of it.
        loaded: The kernel itself.
        device: Where its tensors must lie; pinned host memory will do too.
        max_shared_bytes: Most shared memory of a block, static and dynamic together.
        cooperative: All blocks run at once, or the launch is refused.
    """

    def __init__(  # noqa: PLR0913 - each is a thing of its own
        self,
        name: str,
        kernel: CompiledKernel,
        loaded: LoadedKernel,
        *,
        device: torch.device,
        max_shared_bytes: int,
        cooperative: bool,
    ) -> None:
        self._name = name
        self._parameters = kernel.parameters
        self._max_threads = kernel.max_threads or MAX_THREADS
        self._max_dynamic_bytes = max_shared_bytes - kernel.shared_bytes
        self._allowed_bytes = DEFAULT_SHARED_BYTES - kernel.shared_bytes
        self._loaded = loaded
        self._device = device
        self._cooperative = cooperative

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], *, shared_bytes: int = 0
    ) -> None:
        """See `Launch`."""
        blocks, threads = _three(grid), _three(block)
        self._check_sizes(blocks, threads, shared_bytes)
        packed = self._packed(args)
        if 0 in blocks:
            return
        if shared_bytes > self._allowed_bytes:
            self._loaded.allow_shared(shared_bytes)
            self._allowed_bytes = shared_bytes
        if self._cooperative:
            self._check_resident(blocks, threads, shared_bytes)
        self._loaded.launch(blocks, threads, packed, shared_bytes)

    def _check_sizes(self, grid: Size, block: Size, shared_bytes: int) -> None:
        if min(block) < 1 or prod(block) > self._max_threads or block[2] > MAX_Z_THREADS:
            limit = f"the limits are {self._max_threads} in all and {MAX_Z_THREADS} in z"
            raise ValueError(f"{self._name}: a block of {block} threads; {limit}")
        if min(grid) < 0 or any(size > limit for size, limit in zip(grid, MAX_GRID, strict=True)):
            raise ValueError(f"{self._name}: a grid of {grid} blocks; the limits are {MAX_GRID}")
        if not 0 <= shared_bytes <= self._max_dynamic_bytes:
            limit = f"the limit is {self._max_dynamic_bytes} on this device"
            raise ValueError(f"{self._name}: {shared_bytes} bytes of dynamic shared memory; {limit}")

    def _check_resident(self, grid: Size, block: Size, shared_bytes: int) -> None:
        limit = self._loaded.max_resident_blocks(prod(block), shared_bytes)
        if prod(grid) > limit:
            raise ValueError(
                f"{self._name}: blocks that wait for each other must all run at once; {limit} of {grid} can"
            )

    def _packed(self, args: Sequence[Argument]) -> list[np.generic]:
        if len(args) != len(self._parameters):
            raise TypeError(f"{self._name} takes {len(self._parameters)} arguments, {len(args)} were given")
        return [self._value(number, *pair) for number, pair in enumerate(zip(self._parameters, args, strict=True))]

    def _value(self, number: int, parameter: Parameter, arg: Argument) -> np.generic:
        if parameter == _POINTER and arg is None:
            return np.uint64(0)
        if parameter == _POINTER and isinstance(arg, torch.Tensor):
            if arg.device != self._device and not arg.is_pinned():
                where = f"lies on {arg.device}, the kernel runs on {self._device}"
                raise TypeError(f"{self._name}: argument {number} {where}")
            return np.uint64(arg.data_ptr())
        if isinstance(arg, np.generic):
            if (_KINDS.get(arg.dtype.kind), arg.dtype.itemsize) == (parameter.kind, parameter.size):
                return arg
            given = str(arg.dtype)
        else:
            given = type(arg).__name__
        raise TypeError(f"{self._name}: argument {number} is {given}, the parameter is {parameter}")


def _three(sizes: tuple[int, ...]) -> Size:
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"1 to 3 dimensions, not {len(sizes)}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
