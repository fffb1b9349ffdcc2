"""How a GPU, or an emulated one, moves the proof's pattern: by a kernel, as an all-reduce does.

What the fabric does to copy engines need not be what it does to the stores and loads of kernels. See `end`.
"""

import numpy as np
import torch

from cuda.check.peers.end import Mover, Summer, pattern, seconds_of_one, sums_in_rank_order
from cuda.collectives.membership import Membership
from cuda.collectives.peer_memory import PeerMemory
from cuda.gpu.memory import DeviceMemory
from cuda.gpu.ranks import Exchanged, GpuRanks
from cuda.kernels.backend import Argument, Backend, on_device
from cuda.kernels.gather import MAX_THREADS, SOURCE

COLUMNS = 4096
"""Floats of a row: the kernel moves bits, whatever they mean."""
GPU_ROWS, EMULATED_ROWS = 2048, 4
SUM_ROWS = (1, 9, 40)
SUM_TIMEOUT_S = 10.0


def open_mover(device: str) -> Mover:
    """For `cuda:N` or `emu:N`."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        from cuda.gpu.backends.gpu import GpuBackend  # noqa: PLC0415 - of use on machines with a GPU only

        return DeviceMover(GpuBackend(int(number)), GPU_ROWS)
    from cuda.emulator import Settings  # noqa: PLC0415 - likewise
    from cuda.gpu.backends.emulated import EmulatedBackend  # noqa: PLC0415 - of use for emulated devices only

    return DeviceMover(EmulatedBackend(Settings(device=int(number))), EMULATED_ROWS)


class DeviceMover:
    """See `Mover`. Kernels are given a peer's memory as its bare address: no tensor of this device lies there."""

    small_bytes = 4 * COLUMNS

    def __init__(self, backend: Backend, num_rows: int) -> None:
        self.num_bytes = num_rows * self.small_bytes
        self._num_rows = num_rows
        self._backend = backend
        (self._take_rows,) = backend.kernels(SOURCE, ["take_rows<float>"])
        self._order = on_device(backend, torch.arange(num_rows, dtype=torch.int32))
        self._staged = on_device(backend, torch.zeros((num_rows, COLUMNS)))

    def memory(self, rank: int) -> PeerMemory:
        """See `Mover`."""
        return DeviceMemory(self._backend, rank, [self.num_bytes] * 2)

    def write(self, address: int, seed: int) -> None:
        """See `Mover`."""
        self._copy(np.uint64(address), on_device(self._backend, self._pattern(seed)), self._num_rows)
        self._backend.synchronize()

    def num_wrong(self, address: int, seed: int) -> int:
        """See `Mover`."""
        self._copy(self._staged, np.uint64(address), self._num_rows)
        self._backend.synchronize()
        return int((self._staged.cpu().view(torch.uint8) != self._pattern(seed).view(torch.uint8)).sum())

    def seconds(self, address: int, num_bytes: int) -> float:
        """See `Mover`."""
        target, num_rows = np.uint64(address), num_bytes // self.small_bytes
        return seconds_of_one(lambda: self._copy(target, self._staged, num_rows), self._backend.synchronize)

    def join(self, rank: int, world_size: int) -> Summer:
        """See `Mover`."""
        return DeviceSummer(self._backend, rank, world_size)

    def _copy(self, target: Argument, source: Argument, num_rows: int) -> None:
        sizes = np.int32(self._num_rows), np.int32(COLUMNS)
        self._take_rows((num_rows,), (MAX_THREADS,), (target, source, *sizes, self._order))

    def _pattern(self, seed: int) -> torch.Tensor:
        return torch.from_numpy(pattern(seed, self.num_bytes)).view(torch.float32).view(-1, COLUMNS)


class DeviceSummer:
    """See `Summer`. Few rows and many, so that every algorithm is used that the group's size allows."""

    def __init__(self, backend: Backend, rank: int, world_size: int) -> None:
        self._backend = backend
        self._rank, self._world_size = rank, world_size
        exchanged = Exchanged(torch.float32, max(SUM_ROWS), COLUMNS, 1e-5)
        self._ranks = GpuRanks(backend, Membership(rank, world_size, SUM_TIMEOUT_S), exchanged)

    def export(self) -> bytes:
        """See `Summer`."""
        return self._ranks.export()

    def meet(self, handles: tuple[bytes, ...]) -> None:
        """See `Summer`."""
        self._ranks.open_peers(handles)

    def num_wrong(self) -> int:
        """See `Summer`."""
        return sum(self._num_wrong(num_rows) for num_rows in SUM_ROWS)

    def close(self) -> None:
        """See `Summer`."""
        self._ranks.close()

    def _num_wrong(self, num_rows: int) -> int:
        parts = [
            np.random.default_rng((rank, num_rows)).normal(size=(num_rows, COLUMNS)).astype(np.float32)
            for rank in range(self._world_size)
        ]
        right = sums_in_rank_order(parts)
        out = self._backend.empty(right.shape, torch.float32)
        self._backend.copy(self._ranks.part(num_rows), torch.from_numpy(parts[self._rank]))
        self._ranks.sum(out)
        try:
            self._backend.synchronize()
        except RuntimeError:
            self._ranks.check(0)  # a rank that did not come is named
            raise
        return int(np.count_nonzero(out.cpu().numpy() != right))
