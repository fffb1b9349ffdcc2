"""The GPU all-reduce in the emulator: the same bits on every rank, by every algorithm, as threads and as processes."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cuda.collectives.peer_memory import PeerMemoryFailed, PeerTimeout
from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend, EmulatedSharing
from cuda.gpu.ranks import DEFAULTS, Exchanged, Slab, Thresholds, algorithm
from tests.cuda.collectives.rank_process import RankProcess, open_group
from tests.cuda.cpu.all_reduce import digest
from tests.cuda.gpu.all_reduce import Job, expected, run_threads
from tests.cuda.kernels.combinations import each_way, needs_compiler

NEAR_WRAPS = (2**31 - 6, 2**32 - 6)
"""Within 24 exchanges the numbers of meetings wrap; those of exchanges too with the second."""
CHECK: Mode = "check"


@needs_compiler
@each_way
@pytest.mark.parametrize("world_size", [2, 3])
def test_few_ranks_find_the_same_bits_by_every_algorithm(world_size: int, mode: Mode, seed: int) -> None:
    run_threads(Job(world_size, settings=Settings(mode, seed)))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [4, 8])
def test_many_ranks_find_the_same_bits_by_every_algorithm(world_size: int, dtype: torch.dtype) -> None:
    run_threads(Job(world_size, dtype=dtype))


@needs_compiler
@pytest.mark.parametrize("first_generation", NEAR_WRAPS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_generations_wrap(world_size: int, first_generation: int) -> None:
    run_threads(Job(world_size, first_generation=first_generation, late=True, rounds=25), runs=2)


@needs_compiler
@pytest.mark.parametrize("rows", [(1,), (2,), (3,), (5,), (8, 1, 3)])
@pytest.mark.parametrize("width", [8, 520])
def test_any_size_is_summed(rows: tuple[int, ...], width: int) -> None:
    run_threads(Job(3, rows=rows, width=width, rounds=5, num_blocks=3))


@needs_compiler
def test_no_rows_are_no_exchange() -> None:
    run_threads(Job(2, rows=(0, 2), rounds=4))


@needs_compiler
@pytest.mark.slow
def test_ten_thousand_exchanges_over_the_wrap() -> None:
    run_threads(Job(2, rows=(1, 3), rounds=100, first_generation=2**31 - 5000), runs=50)


@contextmanager
def started(count: int) -> Iterator[list[RankProcess]]:
    processes = [RankProcess() for _ in range(count)]
    yield processes
    for process in processes:
        process.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[RankProcess]]:
    with started(3) as three:
        yield three


def run_processes(processes: list[RankProcess], job: Job) -> None:
    open_group(processes, job)
    for run in range(2):
        for process in processes:
            process.send("run", run)
        assert {process.receive() for process in processes} == {digest(expected(job, run))}
    for process in processes:
        process.send("close")


@needs_compiler
@pytest.mark.parametrize(("world_size", "mode", "seed"), [(2, "fast", 0), (2, "check", 3), (3, "check", 4)])
def test_processes_find_the_same_bits(processes: list[RankProcess], world_size: int, mode: Mode, seed: int) -> None:
    job = Job(world_size, settings=Settings(mode, seed), first_generation=NEAR_WRAPS[0], rounds=6, late=True)
    run_processes(processes[:world_size], job)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", CHECK])
@pytest.mark.parametrize("world_size", [4, 8])
def test_many_processes_find_the_same_bits(world_size: int, mode: Mode) -> None:
    with started(world_size) as many:
        run_processes(many, Job(world_size, settings=Settings(mode, 1), first_generation=NEAR_WRAPS[0], rounds=6))


@needs_compiler
def test_a_rank_that_is_stopped_or_killed_ends_all_others_within_the_deadline(processes: list[RankProcess]) -> None:
    """The last that the processes do."""
    job = Job(3, timeout_s=1.0)
    for end in (signal.SIGSTOP, signal.SIGKILL):
        open_group(processes, job)
        for process in processes:
            process.send("run for ever")
        assert {process.receive() for process in processes} == {digest(expected(job, 0))}
        os.kill(processes[1].pid, end)
        began = time.monotonic()
        told = [processes[rank].receive() for rank in (0, 2)]
        assert time.monotonic() - began < 3.0
        # In the emulator the first to give up ends the other's wait, which then knows only that it is over.
        assert any(re.fullmatch(r"rank [02] waited 1 s for rank 1 in exchange \d+ \(step \d+\)", say) for say in told)
        assert all("for rank 1 " in say or "aborted" in say for say in told)
        if end == signal.SIGSTOP:
            os.kill(processes[1].pid, signal.SIGCONT)
            assert "aborted" in processes[1].receive()


@needs_compiler
def test_a_rank_that_never_comes_is_named() -> None:
    job = Job(2, timeout_s=0.1)
    present, absent = job.start(0), job.start(1)
    handles = [present.ranks.export(), absent.ranks.export()]
    with pytest.raises(PeerTimeout, match=r"^rank 0 waited 0\.1 s for rank 1 to open its peers' memory$"):
        present.open_peers(handles)
    present.close()
    absent.close()


@needs_compiler
def test_a_rank_that_does_not_run_the_step_is_named() -> None:
    job = Job(2, timeout_s=0.1)
    present, absent = job.start(0), job.start(1)
    handles = [present.ranks.export(), absent.ranks.export()]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: rank.open_peers(handles), (present, absent)))
    with pytest.raises(PeerTimeout, match=r"^rank 0 waited 0\.1 s for rank 1 in exchange 1 \(step 7\)$"):
        present.run(7)
    present.close()
    absent.close()


@needs_compiler
def test_a_gpu_that_gave_up_and_frees_nothing_is_let_go_of_without_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(2, timeout_s=0.1)
    present, absent = job.start(0), job.start(1)
    handles = [present.ranks.export(), absent.ranks.export()]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: rank.open_peers(handles), (present, absent)))
    with pytest.raises(PeerTimeout):
        present.run(7)
    refused: list[object] = []

    def refuse(what: object, *_args: object) -> None:
        refused.append(what)
        raise RuntimeError("cudaErrorLaunchFailure: unspecified launch failure")

    with monkeypatch.context() as lost:
        lost.setattr(EmulatedSharing, "close", refuse)
        lost.setattr(EmulatedBackend, "synchronize", refuse)
        present.close()
    assert len(refused) == 2
    absent.close()


@needs_compiler
def test_what_a_killed_rank_leaves_is_swept_by_the_next() -> None:
    process = RankProcess()
    process.send("make", Job(2), 0)
    process.receive()
    process.close()
    left = left_by(process.pid)
    assert any(name.endswith(".ledger") for name in left)
    Job(2).start(0).close()
    assert left_by(process.pid) == []


def left_by(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"tokenstage-*-{pid}-*")]  # noqa: S108 - where shared memory is


@needs_compiler
def test_a_handle_of_another_rank_or_another_size_is_refused() -> None:
    ranks = [Job(2).start(0), Job(2).start(1), Job(2, width=48).start(1)]
    own, peer, wide = (rank.ranks.export() for rank in ranks)
    for handles in ([own, own], [own, wide], [peer, peer]):
        with pytest.raises(PeerMemoryFailed, match=r"rank 0 needs \d+ bytes of rank [01] and is given"):
            ranks[0].open_peers(handles)
    for rank in ranks:
        rank.close()


KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("world_size", "num_bytes", "expected"),
    [
        (2, 8 * MIB, "one-shot"),
        (3, 512 * KIB, "one-shot"),
        (4, 512 * KIB, "one-shot"),
        (4, 512 * KIB + 1, "two-shot"),
        (5, 256 * KIB, "one-shot"),
        (8, 256 * KIB, "one-shot"),
        (8, 256 * KIB + 1, "two-shot"),
    ],
)
def test_small_parts_take_one_shot(world_size: int, num_bytes: int, expected: str) -> None:
    assert algorithm(num_bytes, world_size) == expected


def test_parts_of_a_slab_have_room_for_all_that_is_exchanged_and_do_not_overlap() -> None:
    row_bytes = 8192 * 2
    exchanged = Exchanged(torch.bfloat16, 8192, 8192, 1e-5, 64, (range(100), range(100, 150)))
    slab = Slab.of(exchanged, 8, DEFAULTS)
    assert slab.round_rows * row_bytes == 8 * MIB
    assert slab.slot_bytes == 256 * KIB
    assert slab.sums == slab.slots + 2 * 8 * 256 * KIB
    assert slab.parts == slab.sums + 8 * MIB
    assert slab.logits == slab.parts + 8192 * row_bytes
    assert slab.num_bytes - slab.logits >= 64 * 150 * 4
    assert all(offset % 256 == 0 for offset in (slab.slots, slab.sums, slab.parts, slab.logits))


def test_two_ranks_need_no_room_for_sums_of_two_shots() -> None:
    slab = Slab.of(Exchanged(torch.float32, 64, 128, 1e-5), 2, DEFAULTS)
    assert slab.slot_bytes == 64 * 512
    assert slab.sums == slab.parts


def test_a_large_part_is_exchanged_in_rounds() -> None:
    slab = Slab.of(Exchanged(torch.float32, 10, 64, 1e-5), 3, Thresholds(256, 256, 4 * 256))
    assert list(slab.rounds(9)) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert list(slab.rounds(0)) == []


def test_a_row_larger_than_a_round_is_a_round() -> None:
    assert Slab.of(Exchanged(torch.float32, 10, 64, 1e-5), 3, Thresholds(16, 16, 64)).round_rows == 1
