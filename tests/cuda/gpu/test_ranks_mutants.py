"""Every flag, order, barrier and meeting of the GPU all-reduce is needed: without it check mode or the sums say so."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.collectives.peer_memory import PeerTimeout
from cuda.emulator import KernelError, Settings
from tests.cuda.gpu.all_reduce import Floats, Job, Rank, expected
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.kernels.mutants import UNSEEN, WRONG_RESULT, Mutant, assert_caught

SOURCE = "all_reduce.cu"
STORE = "ptx::store_release_system(flag_of(group, peer, group.rank), meeting);"
LOAD = "ptx::load_acquire_system(flag)"
COMPARED = f"static_cast<i32>({LOAD} - meeting) >= 0"
BEFORE = "    __syncthreads();  // nobody is told before all threads have written, and read, what the peers wait for\n"
BEHIND = "    __syncthreads();  // nobody reads what a peer wrote, or overwrites what it reads, before it has come\n"
ROWS = "            __syncthreads();  // the next row's partial sums of squares do not overwrite this one's\n"
FIRST, SECOND = "    meet(group, first_of(generation));\n", "    meet(group, second_of(generation));\n"
SHARE, SIZE = "    const i32 share", "    const i32 size"
PUSHED_SUMS = "static_cast<i64>(vector) * width, sum);\n        }\n    }\n"
PUSHED_LOGITS = "group.logits)[at] = mine[i];\n        }\n    }\n"
PUSHED_SLOTS = "group.rank, generation) + at, mine);\n            }\n        }\n"
SEEN = frozenset({*UNSEEN, WRONG_RESULT})
"""A race; or, if the reader has learnt of a later write by then, wrong numbers."""
WRONG = frozenset({WRONG_RESULT})
LATE = frozenset({"trap"})

MUTANTS = {
    "no release": Mutant(SOURCE, STORE, STORE.replace("ptx::store_release_system", "atomicExch_system"), UNSEEN),
    "no acquire": Mutant(SOURCE, LOAD, "atomicAdd_system(const_cast<u32*>(flag), 0u)", UNSEEN),
    "release at gpu scope": Mutant(SOURCE, STORE, STORE.replace("release_system", "release_gpu"), UNSEEN),
    "acquire at gpu scope": Mutant(SOURCE, LOAD, "ptx::load_acquire_gpu(flag)", UNSEEN),
    "no barrier before the flags": Mutant(SOURCE, BEFORE, "", UNSEEN),
    "no barrier behind the flags": Mutant(SOURCE, BEHIND, "", UNSEEN),
    "no barrier between rows": Mutant(SOURCE, ROWS, "", UNSEEN),
    "one shot without a meeting": Mutant(SOURCE, PUSHED_SLOTS + SECOND, PUSHED_SLOTS, SEEN),
    "two shots without the first meeting": Mutant(SOURCE, FIRST + SHARE, SHARE, SEEN),
    "two shots without the second meeting": Mutant(SOURCE, PUSHED_SUMS + SECOND, PUSHED_SUMS, SEEN),
    "logits without the first meeting": Mutant(SOURCE, FIRST + SIZE, SIZE, SEEN),
    "logits without the second meeting": Mutant(SOURCE, PUSHED_LOGITS + SECOND, PUSHED_LOGITS, SEEN),
    "a stale generation accepted": Mutant(SOURCE, COMPARED, COMPARED.replace(">= 0", ">= -2"), SEEN),
    "generations compared as if they did not wrap": Mutant(SOURCE, COMPARED, f"{LOAD} >= meeting", SEEN | LATE),
    "generations not counted": Mutant(SOURCE, "*generation_of(group) = generation;", ";", SEEN),
    "both meetings have one number": Mutant(SOURCE, "return 2 * generation;", "return 2 * generation + 1;", SEEN),
    "one slot for both parities": Mutant(SOURCE, "generation % 2 * group", "0 * group", SEEN),
    "the own part first": Mutant(SOURCE, "source(rank)", "source((group.rank + rank) % group.num_ranks)", WRONG),
    "flags of the blocks that have rows only": Mutant(SOURCE, STORE, "if (blockIdx.x < 1) " + STORE, LATE),
    "a barrier more, which is harmless": Mutant(SOURCE, BEFORE, 2 * BEFORE),
}


def run(settings: Settings, sources: Path) -> None:
    job = Job(
        3, rows=(1, 3, 4, 7), width=136, dtype=torch.float32, rounds=8, one_shot_rows=3, settings=settings,
        sources=sources, first_generation=2**31 - 4, timeout_s=1.0,
    )  # fmt: skip
    errors: list[KernelError] = []

    def play(rank: Rank) -> Floats | None:
        try:
            return rank.run(0)
        except (KernelError, PeerTimeout) as error:
            errors.append(error if isinstance(error, KernelError) else trap_behind(error))
        return None

    with ThreadPoolExecutor(job.world_size) as threads:
        ranks = list(threads.map(job.start, range(job.world_size)))
        handles = [rank.ranks.export() for rank in ranks]
        list(threads.map(lambda rank: rank.open_peers(handles), ranks))
        found = list(threads.map(play, ranks))
        list(threads.map(lambda rank: rank.close(), ranks))
    if errors:
        raise next((error for error in errors if error.kind != "aborted"), errors[0])
    right = expected(job, 0).view(np.int32)
    for each in found:
        assert each is not None
        np.testing.assert_array_equal(each.view(np.int32), right)


def trap_behind(error: PeerTimeout) -> KernelError:
    assert isinstance(error.__context__, KernelError)
    return error.__context__


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert_caught(MUTANTS[name], run)
