"""Peer memory on devices, through `Backend.sharing`: CUDA IPC between processes, and plain addresses within one.

The same in the emulator. Unlike `SharedMemory`, what is freed by its owner is gone for its peers too: who closes must
know that all have stopped using it. Read `cuda.collectives.peer_memory` for the rules.
"""

from collections.abc import Sequence

import msgspec

from cuda.collectives.peer_memory import PeerMemoryFailed
from cuda.collectives.shared_memory import new_name, process_name, sweep
from cuda.kernels.backend import Backend


class _Handle(msgspec.Struct, frozen=True, array_like=True):
    rank: int
    num_bytes: int
    process: str
    """Who made it; another process opens it by the token, its own threads need no more than the address."""
    device_index: int
    address: int
    token: bytes


class DeviceMemory:
    """The memory of `rank`; `sizes` are the bytes of each rank's. PeerMemoryFailed if there is no room for it."""

    def __init__(self, backend: Backend, rank: int, sizes: Sequence[int]) -> None:
        sweep()
        self._backend = backend
        self._rank = rank
        self._sizes = tuple(sizes)
        self._opened: list[int] = []
        try:
            self._own: int | None = backend.sharing.make(sizes[rank], new_name())
        except RuntimeError as error:
            raise PeerMemoryFailed(f"rank {rank}: no {sizes[rank] >> 20} MiB of shared memory: {error}") from error

    @property
    def address(self) -> int:
        """See `PeerMemory`."""
        if self._own is None:
            raise PeerMemoryFailed(f"rank {self._rank}: its memory is closed")
        return self._own

    def export(self) -> bytes:
        """See `PeerMemory`."""
        token = self._backend.sharing.token(self.address)
        num_bytes = self._sizes[self._rank]
        return msgspec.msgpack.encode(
            _Handle(self._rank, num_bytes, process_name(), self._backend.index, self.address, token)
        )

    def open_peers(self, handles: Sequence[bytes]) -> tuple[int, ...]:
        """See `PeerMemory`."""
        if len(handles) != len(self._sizes):
            raise PeerMemoryFailed(
                f"rank {self._rank} is given {len(handles)} handles; there are {len(self._sizes)} ranks"
            )
        return tuple(self._open(rank, handle) for rank, handle in enumerate(handles))

    def seal(self) -> None:
        """See `PeerMemory`."""
        self._backend.sharing.hide(self.address)

    def close_peers(self) -> None:
        """Let go of the peers' memory."""
        while self._opened:
            self._backend.sharing.close(self._opened.pop())

    def close(self) -> None:
        """See `PeerMemory`. All peers must have let go of it."""
        self.close_peers()
        if self._own is not None:
            self._backend.sharing.close(self._own)
            self._own = None

    def _open(self, rank: int, handle: bytes) -> int:
        wanted = f"rank {self._rank} needs {self._sizes[rank]} bytes of rank {rank}"
        try:
            told = msgspec.msgpack.decode(handle, type=_Handle)
        except msgspec.MsgspecError as error:
            raise PeerMemoryFailed(f"{wanted} and is given the handle {handle!r}") from error
        is_own = told.process == process_name() and told.address == self.address
        if (told.rank, told.num_bytes) != (rank, self._sizes[rank]) or (rank == self._rank) != is_own:
            raise PeerMemoryFailed(f"{wanted} and is given {told.num_bytes} bytes of rank {told.rank}")
        try:
            if told.process == process_name():
                self._backend.sharing.reach(told.device_index)
                return told.address
            self._opened.append(self._backend.sharing.open(told.token, told.num_bytes))
        except RuntimeError as error:
            raise PeerMemoryFailed(f"rank {self._rank} cannot open the memory of rank {rank}: {error}") from error
        return self._opened[-1]
