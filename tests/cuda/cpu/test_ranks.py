"""The CPU all-reduce: the same bits on every rank, as threads and as processes, and nobody waits for ever."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cuda.collectives.peer_memory import PeerTimeout
from tests.cuda.collectives.rank_process import RankProcess, open_group
from tests.cuda.cpu.all_reduce import Job, Rank, digest, expected

NEAR_WRAPS = (0, 2**31 - 25, -25)
"""int32: within 50 meetings the second runs over the largest number, the third over what unsigned numbers wrap at."""


def run_threads(job: Job, runs: int = 1) -> None:
    """All ranks' sums against the reference, bit by bit."""
    ranks = [Rank(job, rank) for rank in range(job.world_size)]
    handles = [rank.ranks.export() for rank in ranks]
    for rank in ranks:
        rank.open_peers(handles)
    with ThreadPoolExecutor(job.world_size) as threads:
        for run in range(runs):
            sums = list(threads.map(lambda rank, run=run: rank.run(run), ranks))
            right = expected(job, run)
            for found in sums:
                np.testing.assert_array_equal(found.view(np.int32), right.view(np.int32))
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("first_meeting", NEAR_WRAPS)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_threads_sum_the_same_bits_through_the_wrap_of_the_count(world_size: int, first_meeting: int) -> None:
    run_threads(Job(world_size, first_meeting=first_meeting), runs=2)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 16), (7, 33), (8, 576), (130, 1024)])
def test_any_size_is_summed(rows: int, width: int) -> None:
    run_threads(Job(3, rows=rows, width=width, rounds=6))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_late_writers_and_late_readers_meet_only_what_is_meant_for_them(world_size: int) -> None:
    run_threads(Job(world_size, late=True), runs=2)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_ranks_of_several_threads_come_as_one(num_threads: int) -> None:
    run_threads(Job(2, rows=9, num_threads=num_threads, late=True), runs=2)


@pytest.mark.slow
def test_ten_thousand_meetings_over_the_wrap() -> None:
    run_threads(Job(2, first_meeting=2**31 - 5000), runs=200)


@pytest.fixture(scope="module")
def processes() -> Iterator[list[RankProcess]]:
    started = [RankProcess() for _ in range(8)]
    yield started
    for process in started:
        process.close()


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_processes_sum_the_same_bits(processes: list[RankProcess], world_size: int) -> None:
    job = Job(world_size, rows=8, width=96, first_meeting=2**31 - 25, late=True)
    open_group(processes[:world_size], job)
    for run in range(2):
        for process in processes[:world_size]:
            process.send("run", run)
        assert {process.receive() for process in processes[:world_size]} == {digest(expected(job, run))}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_is_named_by_all_others_within_the_deadline(end: signal.Signals) -> None:
    job = Job(3, timeout_s=1.0)
    ranks = [RankProcess() for _ in range(3)]
    open_group(ranks, job)
    for process in ranks:
        process.send("run for ever")
    assert {process.receive() for process in ranks} == {digest(expected(job, 0))}
    os.kill(ranks[1].pid, end)
    began = time.monotonic()
    for rank in (0, 2):
        message = ranks[rank].receive()
        assert re.fullmatch(rf"rank {rank} waited 1 s for rank 1 in exchange \d+ of 50 of step \d+", message)
    assert time.monotonic() - began < 3.0
    if end == signal.SIGSTOP:
        os.kill(ranks[1].pid, signal.SIGCONT)
        assert re.match(r"rank 1 waited 1 s for rank [02]", ranks[1].receive())
    for process in ranks:
        process.close()


def test_ranks_that_were_all_stopped_for_longer_than_the_deadline_go_on() -> None:
    job = Job(2, timeout_s=0.8)
    ranks = [RankProcess() for _ in range(2)]
    open_group(ranks, job)
    for process in ranks:
        process.send("run for ever")
    for process in ranks:
        process.receive()
    for process in reversed(ranks):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)  # rank 0 comes to wait for rank 1
    time.sleep(1.0)  # the deadline passes
    os.kill(ranks[0].pid, signal.SIGCONT)
    assert not ranks[0].has_answered(within_s=0.2)
    os.kill(ranks[1].pid, signal.SIGCONT)
    assert not ranks[0].has_answered(within_s=1.0)
    for process in ranks:
        process.close()


def test_a_rank_that_never_comes_ends_the_program_of_all_threads_at_the_meeting() -> None:
    job = Job(2, num_threads=3, timeout_s=0.05)
    present, absent = Rank(job, 0), Rank(job, 1)
    present.open_peers([present.ranks.export(), absent.ranks.export()])
    with pytest.raises(PeerTimeout, match=r"^rank 0 waited 0\.05 s for rank 1 in exchange 1 of 50 of step 7$"):
        present.run(7)
    assert np.isnan(present._out).all()
    present.close()
    absent.close()
