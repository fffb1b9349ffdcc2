"""The GPU all-reduce in the emulator: the same bits on every rank, by every algorithm, as threads and as processes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from tests.cuda.collectives.gpu_all_reduce import Job, expected
from tests.cuda.kernels.combinations import each_way, needs_compiler

NEAR_WRAPS = (2**31 - 6, 2**32 - 6)
"""Within 24 exchanges the numbers of meetings wrap; those of exchanges too with the second."""
CHECK: Mode = "check"


def run_threads(job: Job, runs: int = 1) -> None:
    """All that the ranks find against what they should, bit by bit."""
    with ThreadPoolExecutor(job.world_size) as threads:
        ranks = list(threads.map(job.start, range(job.world_size)))
        handles = [rank.ranks.export() for rank in ranks]
        list(threads.map(lambda rank: rank.open_peers(handles), ranks))
        for run in range(runs):
            for found in threads.map(lambda rank, run=run: rank.run(run), ranks):
                np.testing.assert_array_equal(found.view(np.int32), expected(job, run).view(np.int32))
        list(threads.map(lambda rank: rank.close(), ranks))


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
