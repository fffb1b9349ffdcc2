"""How a GPU, or an emulated one, moves the proof's pattern: by a kernel, as an all-reduce does.

What the fabric does to copy engines need not be what it does to the stores and loads of kernels. See `peer_end`.
"""

import torch

from cuda.backends.backend import Backend
from cuda.collectives.device_memory import DeviceMemory
from cuda.collectives.peer_end import Mover, pattern, seconds_of
from cuda.collectives.peer_memory import PeerMemory
from cuda.kernels.gather import Gather

COLUMNS = 4096
"""Floats of a row: the kernel moves bits, whatever they mean."""
GPU_ROWS, EMULATED_ROWS = 2048, 4


def open_device_mover(device: str) -> Mover:
    """For `cuda:N` or `emu:N`."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        from cuda.backends.gpu import GpuBackend  # noqa: PLC0415 - of use on machines with a GPU only

        return DeviceMover(GpuBackend(int(number)), GPU_ROWS)
    from cuda.backends.emulated import EmulatedBackend  # noqa: PLC0415 - of use for emulated devices only
    from cuda.emulator import Settings  # noqa: PLC0415 - likewise

    return DeviceMover(EmulatedBackend(Settings(device=int(number))), EMULATED_ROWS)


class DeviceMover:
    """See `Mover`."""

    small_bytes = 4 * COLUMNS

    def __init__(self, backend: Backend, num_rows: int) -> None:
        self.num_bytes = num_rows * self.small_bytes
        self._backend = backend
        self._gather = Gather(backend, torch.float32, COLUMNS)
        self._order = self._place(torch.arange(num_rows, dtype=torch.int32))
        self._staged = backend.empty((num_rows, COLUMNS), torch.float32)

    def memory(self, rank: int) -> PeerMemory:
        """See `Mover`."""
        return DeviceMemory(self._backend, rank, [self.num_bytes] * 2)

    def let_go(self, memory: PeerMemory) -> None:
        """See `Mover`: what is freed by its maker is gone."""
        if isinstance(memory, DeviceMemory):
            memory.close_peers()

    def write(self, address: int, seed: int) -> None:
        """See `Mover`."""
        self._copy(self._rows(address), self._place(self._pattern(seed)))
        self._backend.synchronize()

    def num_wrong(self, address: int, seed: int) -> int:
        """See `Mover`."""
        self._copy(self._staged, self._rows(address))
        self._backend.synchronize()
        return int((self._staged.cpu().view(torch.uint8) != self._pattern(seed).view(torch.uint8)).sum())

    def seconds(self, address: int, num_bytes: int) -> float:
        """See `Mover`."""
        target = self._rows(address)[: num_bytes // self.small_bytes]
        return seconds_of(lambda: self._copy(target, self._staged), self._backend.synchronize)

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._gather.take_rows(target, source, self._order[: target.shape[0]])

    def _rows(self, address: int) -> torch.Tensor:
        return self._backend.over(address, self.num_bytes).view(torch.float32).view(-1, COLUMNS)

    def _pattern(self, seed: int) -> torch.Tensor:
        return torch.from_numpy(pattern(seed, self.num_bytes)).view(torch.float32).view(-1, COLUMNS)

    def _place(self, values: torch.Tensor) -> torch.Tensor:
        tensor = self._backend.empty(values.shape, values.dtype)
        self._backend.copy(tensor, values)
        self._backend.synchronize()
        return tensor
