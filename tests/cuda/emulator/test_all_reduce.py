"""Two all-reduces between three ranks, each rank with many launches in flight, so that order passes through everything
that can carry it: barriers, flags of either device, streams and graphs, and knowledge of knowledge.
"""

import multiprocessing
import os
import threading
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Literal

import numpy as np
import pytest

from cuda.emulator import CudaStream, DeviceArray, KernelError, RawModule, Settings
from tests.cuda.emulator.subjects import PTX

NUM_RANKS, NUM_BLOCKS, NUM_STEPS, WIDTH = 3, 2, 5, 64
SLAB = 96 + 2 * NUM_RANKS * WIDTH  # flags, a rank's input, and its slots: by parity, then by the rank that pushes
FIRST_FLAG = 0xFFFFFFE0  # generations pass through zero
PEERS = np.dtype([("slab", np.uint64, NUM_RANKS)])

SOURCE = (
    PTX
    + r"""
struct Peers { float* slab[3]; };
constexpr int ranks = 3, width = 64, input = 32, slots = 96;

__device__ void meet(Peers peers, int rank, unsigned generation, int set) {
    __syncthreads();  // BEFORE
    int i = threadIdx.x;
    if (i < ranks) {
        unsigned* theirs = (unsigned*)peers.slab[i] + set * 6 + rank * 2 + blockIdx.x;
        unsigned* mine = (unsigned*)peers.slab[rank] + set * 6 + i * 2 + blockIdx.x;
        ptx::store_release_system(theirs, generation);
        while ((int)(ptx::load_acquire_system(mine) - generation) < 0) {}
    }
    __syncthreads();  // BEHIND
}
extern "C" __global__ void produce(Peers peers, int rank, const int* step) {
    peers.slab[rank][input + blockIdx.x * 32 + threadIdx.x] = (float)((rank + 1) * threadIdx.x + step[0]);
}
extern "C" __global__ void push(Peers peers, int rank, const int* step, float* out) {
    unsigned generation = 0xfffffff0u + step[0];
    int at = blockIdx.x * 32 + threadIdx.x;
    float* mine = peers.slab[rank];
    for (int r = 0; r < ranks; ++r)
        peers.slab[r][slots + (generation % 2 * ranks + rank) * width + at] = mine[input + at];
    meet(peers, rank, generation, 0);
    float sum = 0.0f;
    for (int r = 0; r < ranks; ++r) sum += mine[slots + (generation % 2 * ranks + r) * width + at];
    out[at] = sum;
}
extern "C" __global__ void pull(Peers peers, int rank, const int* step, float* out) {
    unsigned generation = 0xfffffff0u + 2 * step[0];
    int at = blockIdx.x * 32 + threadIdx.x;
    meet(peers, rank, generation, 1);  // START
    float sum = 0.0f;
    for (int r = 0; r < ranks; ++r) sum += peers.slab[r][input + at];
    meet(peers, rank, generation + 1, 1);  // END
    out[at] = sum;
}
extern "C" __global__ void keep(int* step, const float* out, float* kept) {
    int now = step[0];
    __syncthreads();
    if (threadIdx.x == 0) step[0] = now + 1;
    kept[now * width + threadIdx.x] = out[threadIdx.x];
}"""
)
COLUMN = np.tile(np.arange(32), NUM_BLOCKS)
SUMS = sum((rank + 1) * COLUMN for rank in range(NUM_RANKS)) + NUM_RANKS * np.arange(NUM_STEPS)[:, None]

Kind = Literal["push", "pull"]


@dataclass(frozen=True)
class Job:
    """One all-reduce: picklable."""

    source: str
    kind: Kind
    seed: int
    watchdog_s: float = 20.0


def play(job: Job, rank: int, slabs: list[DeviceArray]) -> str:
    """One rank's part: `right`, `wrong`, or the kind of its error."""
    settings = Settings("check", job.seed + rank, device=rank, watchdog_s=job.watchdog_s)
    plain = RawModule(code=job.source, settings=settings)
    cooperative = RawModule(code=job.source, settings=settings, enable_cooperative_groups=True)
    peers = np.array(([slab.pointer for slab in slabs],), PEERS)[()]
    step, out = DeviceArray.from_numpy(np.zeros(1, np.int32)), DeviceArray.empty(WIDTH, np.float32)
    kept = DeviceArray.empty((NUM_STEPS, WIDTH), np.float32)
    before = None
    with closing(CudaStream(f"rank {rank}")) as stream:
        stream.begin_capture()
        plain.get_function("produce")((NUM_BLOCKS,), (32,), (peers, np.int32(rank), step), stream=stream)
        args = (peers, np.int32(rank), step, out)
        cooperative.get_function(job.kind)((NUM_BLOCKS,), (32,), args, stream=stream)
        plain.get_function("keep")((1,), (WIDTH,), (step, out, kept), stream=stream)
        graph = stream.end_capture()
        try:
            for _ in range(NUM_STEPS):
                graph.launch()
                event = stream.record()
                if before is not None:
                    before.wait()
                before = event
            stream.synchronize()
        except KernelError as error:
            return error.kind
    return "right" if np.array_equal(kept.numpy(), SUMS) else "wrong"


def fill(slab: DeviceArray) -> DeviceArray:
    slab.set(np.full(SLAB, FIRST_FLAG, np.uint32).view(np.float32))
    return slab


def compile_first(job: Job) -> None:
    """So that no rank spins while another compiles."""
    RawModule(code=job.source, settings=Settings("check"))


def as_threads(job: Job) -> list[str]:
    compile_first(job)
    slabs = [fill(DeviceArray.empty(SLAB, np.float32)) for _ in range(NUM_RANKS)]
    said = [""] * NUM_RANKS

    def rank_thread(rank: int) -> None:
        said[rank] = play(job, rank, slabs)

    threads = [threading.Thread(target=rank_thread, args=(rank,)) for rank in range(NUM_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def rank_process(rank: int, jobs: "list[tuple[Job, list[str]]]", said: "Queue[tuple[int, str]]") -> None:
    for number, (job, names) in enumerate(jobs):
        slabs = [DeviceArray.shared(name, (SLAB,), np.float32, create=False) for name in names]
        said.put((number, play(job, rank, slabs)))


def as_processes(jobs: list[Job]) -> list[list[str]]:
    """What the ranks say of each job, in no order; one process a rank, and new memory for each job."""
    context = multiprocessing.get_context("spawn")
    said: Queue[tuple[int, str]] = context.Queue()
    slabs, named = [], []
    for number, job in enumerate(jobs):
        compile_first(job)
        names = [f"/tokenstage-test-{os.getpid()}-{number}-{rank}" for rank in range(NUM_RANKS)]
        slabs += [fill(DeviceArray.shared(name, (SLAB,), np.float32, create=True)) for name in names]
        named.append((job, names))
    ranks = [context.Process(target=rank_process, args=(rank, named, said)) for rank in range(NUM_RANKS)]
    for process in ranks:
        process.start()
    all_said: list[list[str]] = [[] for _ in jobs]
    for _ in range(NUM_RANKS * len(jobs)):
        number, word = said.get(timeout=60)
        all_said[number].append(word)
    for process in ranks:
        process.join()
    for slab in slabs:
        slab.free()
    return all_said


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_devices_that_are_threads_raise_no_alarm(kind: Kind, seed: int) -> None:
    assert as_threads(Job(SOURCE, kind, seed)) == ["right"] * NUM_RANKS


def test_devices_that_are_processes_raise_no_alarm() -> None:
    kinds: tuple[Kind, ...] = ("push", "pull")
    jobs = [Job(SOURCE, kind, seed) for kind in kinds for seed in (0, 3, 4)]
    assert as_processes(jobs) == [["right"] * NUM_RANKS] * len(jobs)


BUGS: dict[str, tuple[Kind, str, str]] = {
    "no barrier at the start": ("pull", "meet(peers, rank, generation, 1);  // START", ""),
    "no barrier at the end": ("pull", "meet(peers, rank, generation + 1, 1);  // END", ""),
    "no block barrier before the flags": ("push", "__syncthreads();  // BEFORE", ""),
    "no block barrier behind the flags": ("push", "__syncthreads();  // BEHIND", ""),
    "release at gpu scope": ("push", "store_release_system", "store_release_gpu"),
    "acquire at gpu scope": ("pull", "load_acquire_system", "load_acquire_gpu"),
    "one slot for both parities": ("push", "generation % 2 * ranks", "0 * ranks"),
    "a stale generation accepted": ("pull", "(mine) - generation)", "(mine) + 1 - generation)"),
}


def with_bug(name: str, watchdog_s: float) -> Job:
    kind, old, new = BUGS[name]
    assert old in SOURCE
    return Job(SOURCE.replace(old, new), kind, 3, watchdog_s)


def is_caught(said: list[str]) -> bool:
    """A slot that is overwritten too early is a race, or, when the reader already saw the newer flag, wrong numbers."""
    return "race" in said or (set(said) <= {"right", "wrong"} and "wrong" in said)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_planted_between_threads_is_caught(name: str) -> None:
    said = as_threads(with_bug(name, 1.0))
    assert is_caught(said), said


def test_bugs_planted_between_processes_are_caught() -> None:
    said = as_processes([with_bug(name, 20.0) for name in BUGS])
    assert [name for name, words in zip(BUGS, said, strict=True) if not is_caught(words)] == []
