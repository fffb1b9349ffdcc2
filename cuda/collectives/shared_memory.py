"""Peer memory of CPU ranks: a file in /dev/shm that each rank maps, under a name that dies with its maker.

A name holds its maker's process id and start time. Whoever makes memory first sweeps away what dead processes left,
which is little: a name is gone as soon as all peers have opened it. Python's own shared memory is not used, because
its resource tracker unlinks memory that peers still open. Read `cuda.collectives.peer_memory` for the rules.
"""

import ctypes
import errno
import itertools
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cuda.collectives.peer_memory import PeerMemoryFailed

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory; files are private to the user
# Process namespace, process id, its start time, count; and what the emulator keeps beside its memory.
_NAME: Final = re.compile(r"tokenstage-(\d+)-(\d+)-(\d+)-\d+(?:\.ledger)?")
_HANDLE: Final = re.compile(rb"shm:(\d+):(\d+):(tokenstage-[0-9-]+)")
_numbers = itertools.count()


class SharedMemory:
    """The memory of `rank`; `sizes` are the bytes of each rank's. PeerMemoryFailed if there is no room for it."""

    def __init__(self, rank: int, sizes: Sequence[int]) -> None:
        sweep()
        self._rank = rank
        self._sizes = [-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]
        self._path: Path | None = _FOLDER / new_name()
        self._peers: list[mmap.mmap] = []
        self._own: mmap.mmap | None = self._make(self._path)

    @property
    def address(self) -> int:
        """See `PeerMemory`."""
        if self._own is None:
            raise PeerMemoryFailed(f"rank {self._rank}: its memory is closed")
        return _address(self._own)

    def export(self) -> bytes:
        """See `PeerMemory`."""
        if self._path is None:
            raise PeerMemoryFailed(f"rank {self._rank}: its memory is sealed")
        return f"shm:{self._rank}:{self._sizes[self._rank]}:{self._path.name}".encode()

    def open_peers(self, handles: Sequence[bytes]) -> tuple[int, ...]:
        """See `PeerMemory`."""
        if len(handles) != len(self._sizes):
            raise PeerMemoryFailed(
                f"rank {self._rank} is given {len(handles)} handles; there are {len(self._sizes)} ranks"
            )
        if handles[self._rank] != self.export():
            raise PeerMemoryFailed(f"rank {self._rank} is given {handles[self._rank]!r} as its own handle")
        addresses = []
        for rank, handle in enumerate(handles):
            if rank == self._rank:
                addresses.append(self.address)
            else:
                self._peers.append(self._open(rank, handle))
                addresses.append(_address(self._peers[-1]))
        return tuple(addresses)

    def seal(self) -> None:
        """See `PeerMemory`."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def close(self) -> None:
        """See `PeerMemory`."""
        while self._peers:
            self._peers.pop().close()
        self.seal()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _make(self, path: Path) -> mmap.mmap:
        size = self._sizes[self._rank]
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(file, 0, size)  # now, and not as a bus error at the first touch
                return _map(file, size)
            except OSError:
                path.unlink()
                raise
            finally:
                os.close(file)
        except OSError as error:
            advice = "; give a container more with --shm-size" if error.errno == errno.ENOSPC else ""
            raise PeerMemoryFailed(
                f"rank {self._rank} cannot have {size >> 20} MiB of shared memory: {error} ({_FOLDER}){advice}"
            ) from error

    def _open(self, rank: int, handle: bytes) -> mmap.mmap:
        told = _HANDLE.fullmatch(handle)
        if told is None or int(told[1]) != rank or int(told[2]) != self._sizes[rank]:
            raise PeerMemoryFailed(
                f"rank {self._rank} needs {self._sizes[rank]} bytes of rank {rank} and is given the handle {handle!r}"
            )
        try:
            file = os.open(_FOLDER / told[3].decode(), os.O_RDWR)
            try:
                return _map(file, self._sizes[rank])
            finally:
                os.close(file)
        except (OSError, ValueError) as error:  # ValueError: the file is shorter
            raise PeerMemoryFailed(f"rank {self._rank} cannot open the memory of rank {rank}: {error}") from error


def process_name() -> str:
    """What the names of this process's memory begin with; no other process's do."""
    return f"tokenstage-{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-"


def new_name() -> str:
    """A name in /dev/shm that nobody has had; `sweep` removes it once this process is dead."""
    return f"{process_name()}{next(_numbers)}"


def sweep() -> None:
    """Remove what processes of this user left in /dev/shm when they were killed."""
    for path in _FOLDER.glob("tokenstage-*"):
        told = _NAME.fullmatch(path.name)
        # In another process namespace (a container) the same id is another process: its leftovers are its own to sweep.
        if told is None or int(told[1]) != _namespace() or _start_time(int(told[2])) == int(told[3]):
            continue
        try:
            if path.stat().st_uid == os.geteuid():
                path.unlink()
        except FileNotFoundError:
            continue  # another process sweeps too


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_time(process_id: int) -> int | None:
    """Clock ticks from the machine's start to the process's, which no other process of that id shares; None: dead."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _map(file: int, size: int) -> mmap.mmap:
    """All pages at once: a step must not stop to have them mapped one by one."""
    return mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
