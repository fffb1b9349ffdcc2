import os
from dataclasses import dataclass

import numpy as np
import pytest

from cuda.emulator import KernelError
from tests.cuda.emulator.launching import run
from tests.cuda.emulator.subjects import SUBJECTS, Subject

CHECK_SEEDS = (0, 3, 4)
SOAK_RUNS = int(os.environ.get("TOKENSTAGE_SOAK_RUNS", "60"))
UNSEEN = {"race", "uninitialised"}  # read before anybody wrote, or while somebody does: which of them is the schedule's


@dataclass(frozen=True)
class Bug:
    """Replace `old` by `new` in a subject, and one of `kinds` must be reported."""

    subject: str
    old: str
    new: str
    kinds: set[str]


XOR = "__shfl_xor_sync(0xffffffffu, peak, d)"
ADD = "sum += __expf(row[i] - peak);"
COPY_NEXT = "in + (t + 1) * 256 + 4 * i"
ACQUIRE = "while (ptx::load_acquire_gpu(flag) == 0u) {}"
RELEASE = "ptx::store_release_gpu(flag, 1u);"
RELAXED_WAIT = "while (atomicAdd(flag, 0u) == 0u) {}"
COUNT = "atomicAdd(&bins[in[blockIdx.x * blockDim.x + threadIdx.x] & 15], 1)"
TOTAL = "atomicAdd(&out[threadIdx.x], bins[threadIdx.x])"
LOOKUP = "long long page = table[blockIdx.x];"
STALE = {"pending-copy", *UNSEEN}
OUT_OF_BOUNDS = {"out-of-bounds", "memory-fault"}

BUGS = {
    "no barrier before partial sums are read": Bug("softmax", "__syncthreads();  // WRITTEN", "", UNSEEN),
    "no barrier before partial sums are overwritten": Bug("softmax", "__syncthreads();  // READ", "", UNSEEN),
    "no barrier after partial sums are overwritten": Bug("softmax", "__syncthreads();  // SUMMED", "", UNSEEN),
    "a warp's barrier for a block's": Bug("softmax", "__syncthreads();  // SUMMED", "__syncwarp();", UNSEEN),
    "a barrier that one warp skips": Bug(
        "softmax", "__syncthreads();  // SUMMED", "if (warp < 3) __syncthreads();", UNSEEN
    ),
    "a barrier in both branches": Bug(
        "softmax",
        "__syncthreads();  // SUMMED",
        "if (warp < 3) __syncthreads();\n else __syncthreads();",
        {"divergent-barrier"},
    ),
    "half a mask": Bug("softmax", XOR, XOR.replace("0xffffffffu", "0xffffu"), {"warp-misuse"}),
    "a mask that lacks a lane that is read": Bug(
        "softmax", XOR, "(lane < 31 ? __shfl_xor_sync(0x7fffffffu, peak, d) : peak)", {"warp-misuse"}
    ),
    "a shuffle in a divergent loop": Bug(
        "softmax", ADD, "sum += __shfl_sync(0xffffffffu, __expf(row[i] - peak), lane);", {"divergent-warp"}
    ),
    "lanes that exit before a shuffle": Bug(
        "softmax", "/* ENTER */", "if (threadIdx.x >= 100) return;", {"warp-misuse"}
    ),
    "every second lane's result stored": Bug(
        "softmax", "if (lane == 0) partial[warp] = sum;", "if (lane < 2) partial[warp] = sum;", {"race"}
    ),
    "one partial sum too many": Bug(
        "softmax", "for (int w = 0; w < num_warps;", "for (int w = 0; w <= num_warps;", {"uninitialised"}
    ),
    "an index behind a shared array": Bug("softmax", "partial[warp] = sum;", "partial[warp + 5] = sum;", {"undefined"}),
    "one column too many": Bug(
        "softmax", "i < n; i += blockDim.x) out", "i <= n; i += blockDim.x) out", {"race", *OUT_OF_BOUNDS}
    ),
    "rows that overlap": Bug("softmax", "out[blockIdx.x * n + i]", "out[blockIdx.x * (n - 1) + i]", {"race"}),
    "a wait that lets one copy too many fly": Bug("pipeline", "cp_async_wait<1>", "cp_async_wait<2>", STALE),
    "no wait for copies": Bug("pipeline", "ptx::cp_async_wait<1>();", "", STALE),
    "no barrier after the wait": Bug("pipeline", "__syncthreads();  // LANDED", "", STALE),
    "no barrier before the next copy": Bug("pipeline", "__syncthreads();  // CONSUMED", "", STALE),
    "the first group is not committed": Bug("pipeline", "ptx::cp_async_commit();  // FIRST", "", STALE),
    "later groups are not committed": Bug("pipeline", "ptx::cp_async_commit();  // NEXT", "", STALE),
    "a misaligned source": Bug("pipeline", COPY_NEXT, COPY_NEXT + " + 1", {"misaligned"}),
    "a misaligned destination": Bug("pipeline", "&tile[0][4 * i]", "&tile[0][4 * i + 2]", {"misaligned"}),
    "one tile too many": Bug("pipeline", "t + 1 < num_tiles", "t + 1 <= num_tiles", OUT_OF_BOUNDS),
    "the buffer in use is overwritten": Bug("pipeline", "tile[(t + 1) % 2]", "tile[t % 2]", {"pending-copy", "race"}),
    "no order between tile and fragments": Bug("mma", "__syncwarp();", "", UNSEEN),
    "a misaligned fragment": Bug("mma", "lane / 16 * 8)", "lane / 16 * 4)", {"misaligned"}),
    "a lane that misses the mma": Bug(
        "mma", "unsigned ra[4]", "if (lane == 31) return; unsigned ra[4]", {"warp-misuse"}
    ),
    "a fragment not transposed": Bug("mma", "ldmatrix_x4_trans", "ldmatrix_x4", {"wrong numbers"}),
    "halves of a fragment swapped": Bug(
        "mma", "ptx::mma", "unsigned s = ra[1]; ra[1] = ra[2]; ra[2] = s; ptx::mma", {"wrong numbers"}
    ),
    "a row of fragments behind the tile": Bug(
        "mma", "b_tile + lane % 16 * 8", "b_tile + lane % 16 * 16 + 8", {"wrong numbers", *UNSEEN}
    ),
    "counters not zeroed": Bug("histogram", "bins[threadIdx.x] = 0;", ";", {"uninitialised"}),
    "counters zeroed too late": Bug("histogram", "__syncthreads();  // ZEROED", "", UNSEEN),
    "counters read too early": Bug("histogram", "__syncthreads();  // COUNTED", "", {"race"}),
    "a count that is not atomic": Bug("histogram", COUNT, "bins[in[threadIdx.x] & 15] += 1", {"race"}),
    "a total that is not atomic": Bug("histogram", TOTAL, "out[threadIdx.x] += bins[threadIdx.x]", {"race"}),
    "a counter that does not exist": Bug("histogram", "& 15]", "& 31]", {"undefined", *OUT_OF_BOUNDS, *UNSEEN}),
    "a page that does not exist": Bug("gather", "table[blockIdx.x];", "table[blockIdx.x] + 2;", OUT_OF_BOUNDS),
    "the skip mark not skipped": Bug("gather", "if (page >= 0) ", "", OUT_OF_BOUNDS),
    "an offset that overflows 32 bits": Bug(
        "gather", LOOKUP, "int page = table[blockIdx.x]; page = page * (1 << 30) / (1 << 30);", {"undefined"}
    ),
    "a stride too small": Bug("gather", "blockIdx.x * row_stride", "blockIdx.x * (row_stride - 4)", {"race"}),
    "a wide load from an odd address": Bug(
        "gather",
        "value = pool[page * 64 + threadIdx.x]",
        "{ float2 v = ((const float2*)(pool + 1))[page]; value = v.x; }",
        {"misaligned"},
    ),
    "a flag stored plainly": Bug("message", RELEASE, "*flag = 1u;", {"race"}),
    "a flag without release": Bug("message", RELEASE, "atomicExch(flag, 1u);", {"race"}),
    "a flag without acquire": Bug("message", ACQUIRE, RELAXED_WAIT, {"race"}),
    "a flag read plainly": Bug(
        "message", ACQUIRE, "while (*(volatile unsigned*)flag == 0u) __nanosleep(20);", {"race"}
    ),
    "a release before the others have written": Bug("message", "__syncthreads();  // FILLED", "", {"race"}),
    "reads before the flag is seen": Bug("message", "__syncthreads();  // SEEN", "", {"race"}),
    "a fence behind the flag": Bug("message", RELEASE, "atomicExch(flag, 1u); __threadfence();", {"race"}),
    "no start of the producer's buffer wait": Bug(
        "producer", "if (n >= 2) ptx::barrier_sync(3 + n % 2, 64);", "", {*UNSEEN, "barrier-misuse", "deadlock"}
    ),
    "a consumer that does not wait": Bug("producer", "ptx::barrier_sync(1 + n % 2, 64);", "", {*UNSEEN, "deadlock"}),
    "a barrier with two counts": Bug(
        "producer", "ptx::barrier_arrive(1 + n % 2, 64);", "ptx::barrier_arrive(1 + n % 2, 96);", {"barrier-misuse"}
    ),
    "the wrong barrier": Bug(
        "producer", "ptx::barrier_arrive(1 + n % 2, 64);", "ptx::barrier_arrive(1, 64);", {*UNSEEN, "deadlock"}
    ),
}

# Changes that keep a kernel right: reporting one of them is a false alarm.
CONTROLS = {
    "a barrier more": Bug("softmax", "/* LEAVE */", "__syncthreads();", set()),
    "lanes that exit when all is done": Bug("softmax", "/* LEAVE */", "if (threadIdx.x >= n) return;", set()),
    "a wait for all copies": Bug("pipeline", "cp_async_wait<1>", "cp_async_wait<0>", set()),
    "a barrier for a warp's order": Bug("mma", "__syncwarp();", "__syncthreads();", set()),
    "fences around relaxed atomics": Bug("message", RELEASE, "__threadfence(); atomicExch(flag, 1u);", set()),
    "system scope where less would do": Bug("message", "_gpu", "_system", set()),
    "a page skipped": Bug("gather", "page >= 0", "page >= 0 && page < 1000", set()),
}


def planted(bug: Bug) -> str:
    source = SUBJECTS[bug.subject].source
    assert bug.old in source
    return source.replace(bug.old, bug.new)


def outcome(subject: Subject, source: str, seed: int) -> str:
    """The kind of error reported in check mode, `wrong numbers`, or `right`."""
    arrays = subject.arrays()
    try:
        got = run(source, arrays, mode="check", seed=seed, **subject.how)
    except KernelError as error:
        return error.kind
    for have, want in zip(got, subject.expected(arrays), strict=True):
        if want is not None and not np.allclose(have, want, rtol=subject.tolerance, atol=0):
            return "wrong numbers"
    return "right"


@pytest.mark.parametrize("seed", CHECK_SEEDS)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, seed: int) -> None:
    bug = BUGS[name]
    assert outcome(SUBJECTS[bug.subject], planted(bug), seed) in bug.kinds


@pytest.mark.parametrize("seed", CHECK_SEEDS)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_harmless_change_stays_silent(name: str, seed: int) -> None:
    bug = CONTROLS[name]
    assert outcome(SUBJECTS[bug.subject], planted(bug), seed) == "right"


@pytest.mark.parametrize("name", SUBJECTS)
def test_right_kernels_raise_no_alarm_under_many_schedules(name: str) -> None:
    subject = SUBJECTS[name]
    for seed in range(SOAK_RUNS):
        assert outcome(subject, subject.source, seed) == "right", f"seed {seed}"
