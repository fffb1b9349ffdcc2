"""Memory of one rank seen by another: in the same process and in others, and what is left in /dev/shm: nothing."""

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda.collectives.peer_memory import PeerMemoryFailed
from cuda.collectives.shared_memory import SharedMemory, sweep

SIZES = (5000, 70)
FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps shared memory


@pytest.fixture
def pair() -> Iterator[tuple[SharedMemory, SharedMemory]]:
    ranks = SharedMemory(0, SIZES), SharedMemory(1, SIZES)
    yield ranks
    for rank in ranks:
        rank.close()


def path_of(handle: bytes) -> Path:
    return FOLDER / handle.rpartition(b":")[2].decode()


def byte(address: int) -> ctypes.c_ubyte:
    return ctypes.c_ubyte.from_address(address)


def test_both_ranks_see_what_either_writes(pair: tuple[SharedMemory, SharedMemory]) -> None:
    handles = [rank.export() for rank in pair]
    first, second = (rank.open_peers(handles) for rank in pair)
    assert first[0] == pair[0].address
    assert second[1] == pair[1].address
    assert byte(second[0] + 4999).value == 0
    byte(first[0] + 4999).value = 7
    byte(first[1] + 69).value = 9
    assert byte(second[0] + 4999).value == 7
    assert byte(second[1] + 69).value == 9
    assert first[1] % 64 == second[0] % 64 == 0


def test_a_sealed_name_is_gone_and_its_memory_stays(pair: tuple[SharedMemory, SharedMemory]) -> None:
    handles = [rank.export() for rank in pair]
    addresses = pair[1].open_peers(handles)
    pair[0].seal()
    assert not path_of(handles[0]).exists()
    pair[0].close()
    byte(addresses[0]).value = 3
    with pytest.raises(PeerMemoryFailed, match="rank 0: its memory is sealed"):
        pair[0].export()


def test_close_removes_the_name_and_can_be_called_twice() -> None:
    rank = SharedMemory(0, SIZES)
    path = path_of(rank.export())
    assert path.stat().st_mode & 0o777 == 0o600
    rank.close()
    rank.close()
    assert not path.exists()
    with pytest.raises(PeerMemoryFailed, match="rank 0: its memory is closed"):
        _ = rank.address


def test_handles_of_other_ranks_sizes_or_kinds_are_refused(pair: tuple[SharedMemory, SharedMemory]) -> None:
    handles = [rank.export() for rank in pair]
    other = SharedMemory(1, (5000, 9000))
    with pytest.raises(PeerMemoryFailed, match="rank 0 is given 1 handles; there are 2 ranks"):
        pair[0].open_peers(handles[:1])
    with pytest.raises(PeerMemoryFailed, match=r"rank 0 is given .* as its own handle"):
        pair[0].open_peers(handles[::-1])
    for wrong in (handles[0], other.export(), b"", b"shm:1:4096:../../etc/passwd"):
        with pytest.raises(PeerMemoryFailed, match="rank 0 needs 4096 bytes of rank 1"):
            pair[0].open_peers([handles[0], wrong])
    other.close()
    pair[1].close()
    with pytest.raises(PeerMemoryFailed, match=r"rank 0 cannot open the memory of rank 1: .*No such file"):
        pair[0].open_peers(handles)


def test_no_room_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(PeerMemoryFailed, match=r"rank 0 cannot have 3 MiB of shared memory: .*No space .* --shm-size"):
        SharedMemory(0, (3 << 20,))
    assert not list(FOLDER.glob(f"tokenstage-*-{os.getpid()}-*"))


MAKE = """
import os, sys
from cuda.collectives.shared_memory import SharedMemory
rank = SharedMemory(0, (100,))
print(rank.export().decode(), flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_leftovers_of_a_killed_process_are_swept_and_those_of_a_living_one_are_not() -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert maker.stdin is not None
    assert maker.stdout is not None
    with maker:
        path = path_of(maker.stdout.readline().strip())
        sweep()
        assert path.exists()
        maker.stdin.close()
        maker.wait()
    assert path.exists()
    SharedMemory(0, SIZES).close()
    assert not path.exists()


def test_a_process_id_used_again_does_not_keep_a_leftover(pair: tuple[SharedMemory, SharedMemory]) -> None:
    name = path_of(pair[0].export()).name.split("-")
    name[3] = str(int(name[3]) - 1)  # its maker had this process's id, and began before it
    leftover, foreign = FOLDER / "-".join(name), FOLDER / "tokenstage-foreign"
    elsewhere = FOLDER / "-".join([name[0], "1", *name[2:]])  # of another process namespace
    for path in (leftover, foreign, elsewhere):
        path.touch()
    sweep()
    assert not leftover.exists()
    for path in (foreign, elsewhere):
        assert path.exists()
        path.unlink()
