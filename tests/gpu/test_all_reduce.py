"""GPU ranks as threads: several on one GPU, with grids so small that all run at once, and one on each of several."""

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
import torch

from cuda.collectives.membership import Membership
from cuda.gpu.backends.gpu import GpuBackend
from cuda.gpu.ranks import Exchanged, GpuRanks
from tests.cuda.collectives.rank_process import RankProcess, open_group
from tests.cuda.gpu.all_reduce import Job, run_threads
from tests.gpu.conftest import Place

NUM_CALLS = 200
HIDDEN = 8192


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_share_a_gpu_find_the_same_bits(place: Place, world_size: int, dtype: torch.dtype) -> None:
    width = 4096 if place.is_gpu else 40
    job = Job(world_size, width=width, dtype=dtype, num_blocks=8 if place.is_gpu else 2, num_gpus=int(place.is_gpu))
    run_threads(job, runs=50 if place.is_gpu else 1)


def test_a_rank_that_is_killed_is_named_by_the_one_that_waited_and_whose_kernel_gave_up(place: Place) -> None:
    job = Job(2, timeout_s=2.0, num_gpus=int(place.is_gpu))
    with closing(RankProcess()) as waiting, closing(RankProcess()) as killed:
        open_group([waiting, killed], job)
        for rank in (waiting, killed):
            rank.send("run for ever")
        assert waiting.receive() == killed.receive()
        os.kill(killed.pid, signal.SIGKILL)
        assert re.fullmatch(r"rank 0 waited 2 s for rank 1 in exchange \d+ \(step \d+\)", waiting.receive())


def test_ranks_on_several_gpus_find_the_same_bits() -> None:
    num_gpus = min(8, torch.cuda.device_count())
    if num_gpus < 2:
        pytest.skip("there is one GPU")
    rows = (1, 2, 31, 64, 200, 1100)
    run_threads(
        Job(num_gpus, rows, HIDDEN, one_shot_rows=32, round_rows=512, num_blocks=36, num_gpus=num_gpus), runs=20
    )


@pytest.mark.parametrize("num_rows", [1, 4, 16, 64, 256])
def test_the_fused_sum_of_several_gpus_against_the_library(num_rows: int) -> None:
    num_gpus = min(8, torch.cuda.device_count())
    if num_gpus < 2:
        pytest.skip("there is one GPU")
    ours, librarys = _fused_s(num_gpus, num_rows), _librarys_s(num_gpus, num_rows)
    size = num_rows * HIDDEN * 2 >> 10
    print(f"{num_gpus} GPUs, {size} KiB: {ours * 1e6:.1f} us with the norm, library {librarys * 1e6:.1f} us without")
    assert ours < librarys


def _fused_s(num_gpus: int, num_rows: int) -> float:
    """Seconds of one sum with its norm, in a graph of many."""
    exchanged = Exchanged(torch.bfloat16, num_rows, HIDDEN, 1e-5)
    backends = [GpuBackend(index) for index in range(num_gpus)]
    with ThreadPoolExecutor(num_gpus) as threads:

        def on_all(call: Callable[[int], object]) -> None:
            list(threads.map(call, range(num_gpus)))

        ranks = [
            GpuRanks(backend, Membership(rank, num_gpus, 10.0), exchanged) for rank, backend in enumerate(backends)
        ]
        handles = [rank.export() for rank in ranks]
        on_all(lambda rank: ranks[rank].open_peers(handles))
        rows = [[backend.zeros((num_rows, HIDDEN), torch.bfloat16) for _ in range(2)] for backend in backends]
        weights = [backend.zeros((HIDDEN,), torch.bfloat16) for backend in backends]

        def calls(rank: int) -> None:
            for _ in range(NUM_CALLS):
                ranks[rank].all_reduce_add_rms_norm(rows[rank][0], rows[rank][1], weights[rank])

        on_all(calls)
        graphs = [backend.capture(partial(calls, rank)) for rank, backend in enumerate(backends)]

        def replay(rank: int) -> None:
            graphs[rank].launch()
            backends[rank].synchronize()

        seconds = _best(lambda: on_all(replay))
        on_all(lambda rank: ranks[rank].close())
    return seconds / NUM_CALLS


def _librarys_s(num_gpus: int, num_rows: int) -> float:
    devices = [torch.device("cuda", index) for index in range(num_gpus)]
    tensors = [torch.zeros((num_rows, HIDDEN), dtype=torch.bfloat16, device=device) for device in devices]

    def calls() -> None:
        for _ in range(NUM_CALLS):
            torch.cuda.nccl.all_reduce(tensors)  # type: ignore[no-untyped-call]  # torch's
        for device in devices:
            torch.cuda.synchronize(device)

    return _best(calls) / NUM_CALLS


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
