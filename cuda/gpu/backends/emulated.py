"""The machine as the emulator plays it: kernels over CPU tensors that lie in guarded, watched memory.

Queues torch's GEMM and copies on the emulator's stream too, so that a missing wait shows here as it would on a GPU.
Read `cuda.emulator` for what it checks.
"""

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from cuda.emulator import CudaStream, DeviceArray, Event, Graph, Kernel, RawModule, Settings, unlink_shared
from cuda.kernels.backend import Argument, Launch
from cuda.models.kv import available_memory

KERNELS = Path(__file__).parents[2] / "kernels"
MAX_SHARED_BYTES = 99 << 10
"""The least of the supported GPUs (sm_89): what fits here fits everywhere."""
DEFAULTS = Settings()


class EmulatedBackend:
    """See `Backend`. ToolchainError without g++, when the first kernel is compiled.

    Args:
        settings: Mode, seed and device number of every launch.
        num_multiprocessors: As many as persistent grids shall see.
        sources: Folder of the `.cu` files.
    """

    device = torch.device("cpu")
    max_shared_bytes = MAX_SHARED_BYTES

    def __init__(self, settings: Settings = DEFAULTS, *, num_multiprocessors: int = 4, sources: Path = KERNELS) -> None:
        self.index = settings.device
        self.sharing = EmulatedSharing()
        self.num_multiprocessors = num_multiprocessors
        self._settings = settings
        self._sources = sources
        self._stream = CudaStream(f"emu:{settings.device}")
        self._arrays = WeakValueDictionary[int, DeviceArray]()
        """By address, those that a tensor lies in."""

    def kernels(self, source: str, names: Sequence[str], *, cooperative: bool = False) -> tuple[Launch, ...]:
        """See `Backend`."""
        module = RawModule(
            path=self._sources / source,
            name_expressions=names,
            enable_cooperative_groups=cooperative,
            settings=self._settings,
        )
        return tuple(_Launch(module.get_function(name), self._stream) for name in names)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        return self._tensor(DeviceArray.empty(_affordable_bytes(shape, dtype), np.uint8), shape, dtype)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        zeros = np.zeros(_affordable_bytes(shape, dtype), np.uint8)
        return self._tensor(DeviceArray.from_numpy(zeros), shape, dtype)

    def over(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `Backend`."""
        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        return torch.zeros(tuple(shape), dtype=dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Backend`."""
        self._queue(target, lambda: target.copy_(source))

    def matmul(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """See `Backend`."""
        self._queue(out, lambda: out.copy_(torch.nn.functional.linear(x.to(out.dtype), weight.to(out.dtype), bias)))

    def call(self, written: torch.Tensor, work: Callable[[], object]) -> None:
        """See `Backend`."""
        self._queue(written, work)

    def record(self) -> Event:
        """See `Backend`."""
        return self._stream.record()

    def capture(self, run: Callable[[], Any]) -> Graph:
        """See `Backend`."""
        self._stream.begin_capture()
        try:
            run()
        finally:
            graph = self._stream.end_capture()
        return graph

    def synchronize(self) -> None:
        """See `Backend`."""
        self._stream.synchronize()

    def free_bytes(self) -> int:
        """See `Backend`."""
        return available_memory()

    def close(self) -> None:
        """See `Backend`."""
        self._stream.close()

    def _tensor(self, array: DeviceArray, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if array.nbytes == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        self._arrays[array.pointer] = array
        memory: npt.NDArray[Any] = np.asarray(_Memory(array))
        return torch.from_numpy(memory).view(dtype).view(tuple(shape))

    def _queue(self, written: torch.Tensor, work: Callable[[], object]) -> None:
        array = self._arrays.get(written.untyped_storage().data_ptr())

        def run(_ticket: int) -> None:
            work()
            if array is not None:
                array.mark_initialised()  # check mode did not see torch write

        self._stream.submit(run)


class EmulatedSharing:
    """See `Sharing`: POSIX shared memory, which check mode watches across processes too.

    A process's own devices address what it made where it made it.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._arrays: dict[int, DeviceArray] = {}

    def make(self, num_bytes: int, name: str) -> int:
        """See `Sharing`."""
        address = self._add(DeviceArray.shared(f"/{name}", (num_bytes,), np.uint8, create=True))
        self._names[address] = name
        return address

    def token(self, address: int) -> bytes:
        """See `Sharing`."""
        return self._names[address].encode()

    def open(self, token: bytes, num_bytes: int) -> int:
        """See `Sharing`."""
        return self._add(DeviceArray.shared(f"/{token.decode()}", (num_bytes,), np.uint8, create=False))

    def reach(self, index: int) -> None:
        """See `Sharing`."""

    def hide(self, address: int) -> None:
        """See `Sharing`."""
        unlink_shared(f"/{self._names[address]}")

    def close(self, address: int) -> None:
        """See `Sharing`."""
        self._arrays.pop(address).free()

    def _add(self, array: DeviceArray) -> int:
        self._arrays[array.pointer] = array
        return array.pointer


class _Launch:
    """A kernel on the backend's stream."""

    def __init__(self, kernel: Kernel, stream: CudaStream) -> None:
        self._kernel = kernel
        self._stream = stream

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], *, shared_bytes: int = 0
    ) -> None:
        packed = [_argument(argument) for argument in args]
        self._kernel(grid, block, packed, shared_mem=shared_bytes, stream=self._stream, keep=args)


class _Memory:
    """A device array as NumPy takes it; the array lives as long as any tensor over it."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.__array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.pointer, False),
            "version": 3,
        }


def _affordable_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes > available_memory():
        raise torch.OutOfMemoryError(f"{num_bytes:,} bytes are more than the host has free")
    return num_bytes


def _argument(argument: Argument) -> np.generic:
    if isinstance(argument, torch.Tensor):
        return np.uint64(argument.data_ptr())
    return np.uint64(0) if argument is None else argument
