"""Ends of the proof of peer-to-peer whose fabric, driver or device fails; those of `cpu:1` are in order."""

import os
import threading
from multiprocessing.connection import Connection
from typing import Any

from cuda.check.peers.cpu import CpuMover
from cuda.check.peers.end import Summer, serve_mover
from cuda.collectives.peer_memory import PeerMemory, PeerMemoryFailed, PeerTimeout
from cuda.collectives.shared_memory import SharedMemory


class Loses(CpuMover):
    """Its writes are accepted and never arrive."""

    def write(self, address: int, seed: int) -> None:
        pass


class ReadsStale(CpuMover):
    """What it reads of the peer is not what is there."""

    def __init__(self) -> None:
        self._own_at = 0

    def memory(self, rank: int) -> PeerMemory:
        made = SharedMemory(rank, [self.num_bytes] * 2)
        self._own_at = made.address
        return made

    def num_wrong(self, address: int, seed: int) -> int:
        return super().num_wrong(address, seed) if address == self._own_at else 4096


class Unmappable(SharedMemory):
    def open_peers(self, handles: Any) -> Any:
        raise PeerMemoryFailed(f"peer access is not supported\nbetween these {len(handles)} devices")


class Refuses(CpuMover):
    def memory(self, rank: int) -> PeerMemory:
        return Unmappable(rank, [self.num_bytes] * 2)


class Hangs(CpuMover):
    def write(self, address: int, seed: int) -> None:  # noqa: ARG002 - as its base
        threading.Event().wait()


class Dies(CpuMover):
    def write(self, address: int, seed: int) -> None:  # noqa: ARG002 - as its base
        os._exit(3)


class NeverStarts(CpuMover):
    def __init__(self) -> None:
        raise RuntimeError("no such device")


class Sums(CpuMover):
    """Of a group in which nothing is computed."""

    def join(self, rank: int, world_size: int) -> Summer:  # noqa: ARG002 - as its base
        return NoSums()


class NoSums:
    def export(self) -> bytes:
        return b""

    def meet(self, handles: tuple[bytes, ...]) -> None:
        pass

    def num_wrong(self) -> int:
        return 0

    def close(self) -> None:
        pass


class SumsWrong(Sums):
    def join(self, rank: int, world_size: int) -> Summer:  # noqa: ARG002 - as its base
        class Wrong(NoSums):
            def num_wrong(self) -> int:
                return 7

        return Wrong()


class SumsLate(Sums):
    def join(self, rank: int, world_size: int) -> Summer:  # noqa: ARG002 - as its base
        class Late(NoSums):
            def num_wrong(self) -> int:
                return int(threading.Event().wait())

        return Late()


class SumsFail(Sums):
    def join(self, rank: int, world_size: int) -> Summer:  # noqa: ARG002 - as its base
        class Fails(NoSums):
            def num_wrong(self) -> int:
                raise PeerTimeout("rank 0 waited 1 s for rank 1")

        return Fails()


FAULTS = {
    fault.__name__: fault
    for fault in (Loses, ReadsStale, Refuses, Hangs, Dies, NeverStarts, SumsWrong, SumsLate, SumsFail)
}


def serve_fault(commands: "Connection[Any, Any]", device: str) -> None:
    """`device` is the fault's name; any other is in order."""
    serve_mover(commands, FAULTS.get(device, Sums))
