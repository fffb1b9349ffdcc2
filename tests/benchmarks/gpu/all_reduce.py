"""Our all-reduce with residual and norm between all GPUs, sums checked first, beside NCCL's bare sum of the same."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch

from cuda.collectives.membership import Membership
from cuda.gpu.ranks import Exchanged, GpuRanks
from cuda.kernels.all_reduce import MAX_RANKS
from cuda.kernels.backend import Backend
from tests.benchmarks.gpu.figures import Ceilings, Report, Scale

ROWS = (1, 2, 4, 8, 16, 64, 256)
CALLS = 50
TIMEOUT_S = 20.0
HALF = torch.bfloat16


def measure_all_reduce(report: Report, scale: Scale, _ceilings: Ceilings) -> None:
    """Microseconds of one of many in a captured graph, by bytes of a rank's part."""
    world_size = min(MAX_RANKS, torch.cuda.device_count()) if scale.is_gpu else 2
    if world_size < 2:
        report({"what": "all-reduce: it takes two GPUs", "skipped": True})
        return
    all_rows = ROWS if scale.is_gpu else ROWS[:2]
    calls = CALLS if scale.is_gpu else 2
    meeting = Barrier(world_size)
    with ThreadPoolExecutor(world_size) as threads:
        ranks = list(
            threads.map(lambda rank: _Rank(scale, rank, world_size, max(all_rows), meeting), range(world_size))
        )
        handles = [rank.ranks.export() for rank in ranks]
        list(threads.map(lambda rank: rank.ranks.open_peers(handles), ranks))
        list(threads.map(lambda rank: rank.check(), ranks))
        for rows in all_rows:
            seconds = max(threads.map(lambda rank, rows=rows: rank.seconds(rows, calls), ranks))
            figure = {"what": f"all-reduce + norm, {world_size} ranks, {rows * scale.columns * 2} bytes"}
            nccl = _nccl_seconds(scale, world_size, rows) if scale.is_gpu else None
            report({**figure, "us": round(seconds * 1e6, 2), "nccl_us": nccl and round(nccl * 1e6, 2)})
        list(threads.map(lambda rank: rank.close(), ranks))


class _Rank:
    """One device and its end; each in a thread of its own."""

    def __init__(self, scale: Scale, rank: int, world_size: int, max_rows: int, meeting: Barrier) -> None:
        self._backend: Backend = scale.open(rank)
        self._world_size = world_size
        self._meeting = meeting
        exchanged = Exchanged(HALF, max_rows, scale.columns, 1e-5)
        self.ranks = GpuRanks(self._backend, Membership(rank, world_size, TIMEOUT_S), exchanged)
        self.ranks.part(max_rows).fill_(rank + 1)
        self._out, self._residual = (self._backend.zeros((max_rows, scale.columns), HALF) for _ in range(2))
        self._weight = self._backend.zeros((scale.columns,), HALF)
        self._backend.synchronize()

    def check(self) -> None:
        """What each rank wrote is its number and one: the sum is known."""
        self.ranks.sum(self._out)
        self._synchronize()
        expected = self._world_size * (self._world_size + 1) // 2
        assert (self._out == expected).all(), "the sum is wrong"

    def seconds(self, rows: int, calls: int) -> float:
        """Of one call."""

        def run() -> None:
            for _ in range(calls):
                self.ranks.all_reduce_add_rms_norm(self._out[:rows], self._residual[:rows], self._weight)

        run()
        self._synchronize()
        graph = self._backend.capture(run)
        best = float("inf")
        for _ in range(3):
            self._meeting.wait(TIMEOUT_S)
            began = time.perf_counter()
            graph.launch()
            self._synchronize()
            best = min(best, time.perf_counter() - began)
        return best / calls

    def close(self) -> None:
        self.ranks.close()
        self._backend.close()

    def _synchronize(self) -> None:
        try:
            self._backend.synchronize()
        except RuntimeError:
            self.ranks.check(0)
            raise


def _nccl_seconds(scale: Scale, world_size: int, rows: int) -> float:
    nccl: Any = torch.cuda.nccl
    parts = [torch.ones((rows, scale.columns), dtype=HALF, device=f"cuda:{index}") for index in range(world_size)]
    for _ in range(3):
        nccl.all_reduce(parts)
    best = float("inf")
    for _ in range(3):
        for index in range(world_size):
            torch.cuda.synchronize(index)
        began = time.perf_counter()
        for _ in range(CALLS):
            nccl.all_reduce(parts)
        for index in range(world_size):
            torch.cuda.synchronize(index)
        best = min(best, time.perf_counter() - began)
    return best / CALLS
