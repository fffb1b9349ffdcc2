"""What kernels and the gpu device need of the machine: memory, compiled kernels, the library's GEMM, order, graphs.

Implementations: `cuda.gpu.backends.gpu.GpuBackend`, `cuda.gpu.backends.emulated.EmulatedBackend`. Tensors are torch's
on both. Everything queued runs asynchronously on one stream, in order; what failed there is raised by `Event.is_done`,
`Event.wait` and `Backend.synchronize`. Calls come from one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

Argument = torch.Tensor | np.generic | None
"""Of a kernel: a tensor's address, a scalar of exactly the parameter's width, or the null pointer."""


class Launch(Protocol):
    """A compiled kernel."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], *, shared_bytes: int = 0
    ) -> None:
        """Queue it over 1-3 dimensional `grid` and `block`; a zero in the grid launches nothing.

        TypeError for an argument that is not what the kernel takes, ValueError for sizes beyond CUDA's limits.
        """


class Event(Protocol):
    """A point in the stream's order."""

    def is_done(self) -> bool:
        """Whether everything queued before it has run."""

    def wait(self) -> None:
        """Block until it is done."""


class Graph(Protocol):
    """Work recorded once with its arguments."""

    def launch(self) -> None:
        """Queue all of it again, as it was recorded."""


class Sharing(Protocol):
    """Device memory that other devices and other processes address. RuntimeError from each call that cannot be done."""

    def make(self, num_bytes: int, name: str) -> int:
        """Address of new memory, all zeros, 64-byte aligned at least; `name` is one that no other memory has."""

    def token(self, address: int) -> bytes:
        """By which another process opens it."""

    def open(self, token: bytes, num_bytes: int) -> int:
        """Address of the memory that another process made."""

    def reach(self, index: int) -> None:
        """Make what this process made on its device `index` addressable on this one."""

    def hide(self, address: int) -> None:
        """Nobody else can open it from now on, nor finds it should this process die."""

    def close(self, address: int) -> None:
        """Let go of memory that was made or opened here. What was made must be open nowhere else."""


class Backend(Protocol):
    """One device and its stream."""

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""

    @property
    def index(self) -> int:
        """Which of the machine's devices it is."""

    @property
    def sharing(self) -> Sharing:
        """Its memory that others address."""

    @property
    def num_multiprocessors(self) -> int:
        """How many blocks surely run at once: the size of a persistent grid is a multiple of it."""

    @property
    def max_shared_bytes(self) -> int:
        """Most shared memory of a block, static and dynamic together."""

    def kernels(self, source: str, names: Sequence[str], *, cooperative: bool = False) -> tuple[Launch, ...]:
        """The kernels `names` (template name expressions, or `extern "C"`) of `cuda/kernels/{source}`, compiled once.

        With `cooperative` all blocks of a launch run at once and may wait for each other.
        """

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory, aligned to 16 bytes, contents undefined. torch.OutOfMemoryError if there is none."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory of zeros."""

    def over(self, address: int, num_bytes: int) -> torch.Tensor:
        """Device memory that somebody else owns, as a uint8 tensor; it must stay for as long as the tensor is used."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory of zeros that `copy` reads and writes without waiting."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy between host and device, or on the device; pinned memory must stay as it is until it has run."""

    def matmul(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Queue out [T, N] = x [T, K] @ weight [N, K].T + bias [N] by the library; `out` may be of a wider dtype."""

    def call(self, written: torch.Tensor, work: Callable[[], object]) -> None:
        """Queue a library's `work` on tensors of this device, which ends in `written`."""

    def record(self) -> Event:
        """An event behind everything queued so far."""

    def capture(self, run: Callable[[], Any]) -> Graph:
        """What `run` queues, recorded instead of run."""

    def synchronize(self) -> None:
        """Block until the stream is empty; raises what failed."""

    def free_bytes(self) -> int:
        """Device memory that can still be had."""

    def close(self) -> None:
        """Let go of the stream; tensors live on until forgotten."""


def on_device(backend: Backend, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy in the backend's memory, as `dtype` if one is given; `values` may be forgotten then."""
    tensor = backend.empty(values.shape, dtype or values.dtype)
    backend.copy(tensor, values)
    backend.synchronize()
    return tensor
