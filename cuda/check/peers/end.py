"""One device's end of the proof of peer-to-peer, in a process of its own: writes into a peer's memory, reads it, times.

Does what `proof` tells it, one command at a time, and answers each. Imports torch only for devices that need it.
"""

import ctypes
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cuda.check.peers.ends import Command, Failed, Speed
from cuda.collectives.peer_memory import PeerMemory
from cuda.collectives.shared_memory import SharedMemory

CPU_BYTES = 8 << 20
TIMED_S = 0.02


class Mover(Protocol):
    """Fills, compares and times memory, wherever it is, as this device addresses it."""

    num_bytes: int
    """Of the memory that is written."""
    small_bytes: int
    """Of a small write."""

    def memory(self, rank: int) -> PeerMemory:
        """`num_bytes` that one peer can open."""

    def let_go(self, memory: PeerMemory) -> None:
        """Close the peer's part of it, where that does not wait for the own part's end."""

    def write(self, address: int, seed: int) -> None:
        """Write the pattern of `seed` to `address`."""

    def num_wrong(self, address: int, seed: int) -> int:
        """How many bytes from `address` on are not the pattern's."""

    def seconds(self, address: int, num_bytes: int) -> float:
        """How long a write of so many takes, one of many."""

    def join(self, rank: int, world_size: int) -> "Summer":
        """Be a rank of a group."""


class Summer(Protocol):
    """A rank of a group that sums."""

    def export(self) -> bytes:
        """Its handle."""

    def meet(self, handles: tuple[bytes, ...]) -> None:
        """Open the memory of all ranks, and wait for them."""

    def num_wrong(self) -> int:
        """How many of the sums that all ranks make together are not the right ones."""

    def close(self) -> None:
        """All ranks at about the same time."""


class CpuMover:
    """The processor."""

    num_bytes = CPU_BYTES
    small_bytes = 64

    def memory(self, rank: int) -> PeerMemory:
        """See `Mover`."""
        return SharedMemory(rank, [self.num_bytes] * 2)

    def let_go(self, memory: PeerMemory) -> None:
        """See `Mover`: a mapping stays valid without its maker."""

    def write(self, address: int, seed: int) -> None:
        """See `Mover`."""
        np.copyto(_octets(address, self.num_bytes), pattern(seed, self.num_bytes))

    def num_wrong(self, address: int, seed: int) -> int:
        """See `Mover`."""
        return int(np.count_nonzero(_octets(address, self.num_bytes) != pattern(seed, self.num_bytes)))

    def seconds(self, address: int, num_bytes: int) -> float:
        """See `Mover`."""
        source, target = np.ones(num_bytes, np.uint8), _octets(address, num_bytes)
        return seconds_of(lambda: np.copyto(target, source), lambda: None)

    def join(self, rank: int, world_size: int) -> "Summer":
        """See `Mover`."""
        from cuda.check.peers.cpu import CpuSummer  # noqa: PLC0415 - loads the CPU's compiler

        return CpuSummer(rank, world_size)


def open_mover(device: str) -> Mover:
    """For `cuda:N`, `emu:N` or `cpu:N`."""
    if device.startswith("cpu"):
        return CpuMover()
    from cuda.check.peers.gpu import open_device_mover  # noqa: PLC0415 - imports torch

    return open_device_mover(device)


class End:
    """One end. Commands come in the order of `Command.verb`."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._memory: PeerMemory | None = None
        self._peer_at = 0
        self._summer: Summer | None = None

    def do(self, command: Command) -> object:  # noqa: C901, PLR0911 - one arm a verb
        """Do it; what it answers."""
        match command.verb:
            case "make":
                self._memory = self._mover.memory(command.rank)
                return self._memory.export()
            case "open":
                self._peer_at = self._made.open_peers(command.handles)[1 - command.rank]
            case "write":
                self._mover.write(self._peer_at, command.pattern)
            case "check":
                return self._mover.num_wrong(self._made.address, command.pattern)
            case "read":
                return self._mover.num_wrong(self._peer_at, command.pattern)
            case "time":
                large, small = self._mover.num_bytes, self._mover.small_bytes
                return Speed(
                    large / self._mover.seconds(self._peer_at, large), self._mover.seconds(self._peer_at, small)
                )
            case "let go":
                self._mover.let_go(self._made)
            case "free":
                self._made.close()
                self._memory = None
            case "join":
                self._summer = self._mover.join(command.rank, command.world_size)
                return self._summer.export()
            case "meet":
                self._joined.meet(command.handles)
            case "sum":
                return self._joined.num_wrong()
            case "leave":
                self._joined.close()
        return None

    @property
    def _joined(self) -> Summer:
        if self._summer is None:
            raise RuntimeError("no group was joined")
        return self._summer

    @property
    def _made(self) -> PeerMemory:
        if self._memory is None:
            raise RuntimeError("no memory was made")
        return self._memory


def serve(commands: "Connection[Any, Any]", device: str) -> None:
    """Be the end of a device until the other side hangs up."""
    serve_mover(commands, lambda: open_mover(device))


def serve_mover(commands: "Connection[Any, Any]", make: Callable[[], Mover]) -> None:
    """Say that the end is there, then answer each command: with its result, or with why it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end = End(make())
    except Exception as error:  # noqa: BLE001 - told to who asked
        commands.send(Failed(_reason(error)))
        return
    commands.send("ready")
    while True:
        try:
            command = commands.recv()
        except EOFError:
            return
        try:
            answer = end.do(command)
        except Exception as error:  # noqa: BLE001 - told to who asked
            answer = Failed(_reason(error))
        commands.send(answer)


def pattern(seed: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """No byte of it is what new memory holds."""
    return np.random.default_rng(seed).integers(1, 256, num_bytes, np.uint8)


def seconds_of(queue: Callable[[], None], wait: Callable[[], None]) -> float:
    """Of one of many that are queued together; more and more of them until it takes long enough to be measured."""
    count = 1
    while True:
        began = time.perf_counter()
        for _ in range(count):
            queue()
        wait()
        spent = time.perf_counter() - began
        if spent >= TIMED_S:
            return spent / count
        count *= 4


def _octets(address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
