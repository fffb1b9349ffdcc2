"""One device's end of the proof of peer-to-peer, in a process of its own: writes into a peer's memory, reads it, times.

Does what `proof` tells it, one command at a time, and answers each. Read `cpu` and `gpu` for how memory is moved.
"""

import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cuda.check.peers.ends import Command, Failed, Speed
from cuda.check.timing import seconds_each
from cuda.collectives.peer_memory import PeerMemory

Floats = npt.NDArray[np.float32]


class Mover(Protocol):
    """Fills, compares and times memory, wherever it is, as this device addresses it."""

    num_bytes: int
    """Of the memory that is written."""
    small_bytes: int
    """Of a small write."""

    def memory(self, rank: int) -> PeerMemory:
        """`num_bytes` that one peer can open."""

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


class End:
    """One end. Commands come in the order of `Command.verb`."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._memory: PeerMemory | None = None
        self._peer_at = 0
        self._summer: Summer | None = None

    def do(self, command: Command) -> object:  # noqa: PLR0911 - one arm a verb
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
            case "free":
                self._made.close()
                self._memory = None
            case "join":
                self._summer = self._mover.join(command.rank, command.world_size)
                return self._summer.export()
            case "sum":
                return self._sum(command.handles)
        return None

    def _sum(self, handles: tuple[bytes, ...]) -> int:
        """All ranks at the same time."""
        if self._summer is None:
            raise RuntimeError("no group was joined")
        self._summer.meet(handles)
        num_wrong = self._summer.num_wrong()
        self._summer.close()
        return num_wrong

    @property
    def _made(self) -> PeerMemory:
        if self._memory is None:
            raise RuntimeError("no memory was made")
        return self._memory


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


def seconds_of_one(queue: Callable[[], None], wait: Callable[[], None] = lambda: None) -> float:
    """Of one of many that are queued together."""

    def spent_on(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            queue()
        wait()
        return time.perf_counter() - began

    return seconds_each(spent_on)


def sums_in_rank_order(parts: Sequence[Floats]) -> Floats:
    """What all ranks must come to, to the last bit."""
    right = parts[0].copy()
    for part in parts[1:]:
        right += part
    return right


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
