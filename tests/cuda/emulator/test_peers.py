import multiprocessing
import os
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda.emulator import CudaStream, DeviceArray, KernelError, RawModule, Settings
from cuda.emulator.build import Mode
from tests.cuda.emulator.launching import line_of
from tests.cuda.emulator.subjects import PTX

NUM_ROUNDS = 4
NEAR_WRAP = 0xFFFFFFFE  # generations pass through zero
WIDTH = 64
SUMS = np.arange(WIDTH, dtype=np.float32) * 3 + 2 * np.arange(NUM_ROUNDS, dtype=np.float32)[:, None]

# Every round a rank pushes its vector into its peer's slot, and adds what its peer pushed. Slots alternate by parity,
# because the peer may begin the next round before this rank has read.
EXCHANGE = (
    PTX
    + """
extern "C" __global__ void k(const float* mine, const float* my_slots, float* peer_slots, unsigned* my_flag,
                             unsigned* peer_flag, float* out, unsigned first, int num_rounds) {
    int i = threadIdx.x;
    for (int round = 0; round < num_rounds; ++round) {
        unsigned generation = first + round;
        int slot = generation % 2 * blockDim.x + i;
        peer_slots[slot] = mine[i] + round;
        __syncthreads();  // PUSHED
        if (i == 0) {
            ptx::store_release_system(peer_flag, generation);
            while ((int)(ptx::load_acquire_system(my_flag) - generation) < 0) {}
        }
        __syncthreads();  // ARRIVED
        out[round * blockDim.x + i] = mine[i] + round + my_slots[slot];
    }
}"""
)


def exchange(source: str, mode: Mode, seed: int) -> tuple[list[NDArray[np.float32]], set[str]]:
    """Runs two devices against each other; what each computed, and the kinds of errors."""
    mine = [DeviceArray.from_numpy(np.arange(WIDTH, dtype=np.float32) * (rank + 1)) for rank in range(2)]
    slots = [DeviceArray.empty(2 * WIDTH, np.float32) for _ in range(2)]
    flags = [DeviceArray.from_numpy(np.full(1, NEAR_WRAP - 1, np.uint32)) for _ in range(2)]
    outs = [DeviceArray.empty((NUM_ROUNDS, WIDTH), np.float32) for _ in range(2)]
    errors: set[str] = set()
    with closing(CudaStream("device 0")) as first, closing(CudaStream("device 1")) as second:
        streams = (first, second)
        for rank, stream in enumerate(streams):
            settings = Settings(mode=mode, seed=seed + rank, device=rank, watchdog_s=2.0)
            kernel = RawModule(code=source, settings=settings).get_function("k")
            peer = 1 - rank
            args = (mine[rank], slots[rank], slots[peer], flags[rank], flags[peer], outs[rank])
            kernel((1,), (WIDTH,), (*args, np.uint32(NEAR_WRAP), np.int32(NUM_ROUNDS)), stream=stream)
        for stream in streams:
            try:
                stream.synchronize()
            except KernelError as error:
                errors.add(error.kind)
    return [out.numpy() for out in outs], errors


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_two_devices_exchange_across_the_wrap_of_generations(mode: Mode, seed: int) -> None:
    outs, errors = exchange(EXCHANGE, mode, seed)
    assert errors == set()
    assert all(np.array_equal(out, SUMS) for out in outs)


BUGS = {
    "no barrier before the flag": ("__syncthreads();  // PUSHED", ""),
    "no barrier after the wait": ("__syncthreads();  // ARRIVED", ""),
    "release at gpu scope": ("store_release_system", "store_release_gpu"),
    "acquire at gpu scope": ("load_acquire_system", "load_acquire_gpu"),
    "an older generation accepted": ("(my_flag) - generation)", "(my_flag) + 1 - generation)"),
    "one slot for both parities": ("generation % 2 * blockDim.x + i", "i"),
}


@pytest.mark.parametrize("seed", [0, 3, 4])
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_planted_between_devices_is_caught(name: str, seed: int) -> None:
    old, new = BUGS[name]
    assert old in EXCHANGE
    outs, errors = exchange(EXCHANGE.replace(old, new), "check", seed)
    # A slot that is overwritten too early is a race, or, when the reader already saw the newer flag, wrong numbers.
    has_wrong_numbers = not all(np.array_equal(out, SUMS) for out in outs)
    assert errors & {"race", "uninitialised"} or (has_wrong_numbers and not errors)


def test_a_peer_that_never_comes_is_named_by_the_watchdog() -> None:
    one = DeviceArray.from_numpy(np.zeros(2 * WIDTH, np.float32))
    flag = DeviceArray.from_numpy(np.zeros(1, np.uint32))
    other = DeviceArray.from_numpy(np.zeros(1, np.uint32))
    kernel = RawModule(code=EXCHANGE, settings=Settings(watchdog_s=0.05)).get_function("k")
    with pytest.raises(KernelError, match=r"load_acquire_system at kernel.cu") as caught:
        kernel((1,), (WIDTH,), (one, one, one, flag, other, one, np.uint32(1), np.int32(1)))
    assert caught.value.kind == "watchdog"


# The reader is not told by a flag of its own, but by one that a later launch of the writer's stream released.
WRITE = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = threadIdx.x; }'
SIGNAL = PTX + 'extern "C" __global__ void k(unsigned* flag) { ptx::store_release_system(flag, 1u); }'
READ = (
    PTX
    + """
extern "C" __global__ void k(unsigned* flag, const float* x, float* out) {
    if (threadIdx.x == 0) { while (ptx::load_acquire_system(flag) == 0u) {} }
    __syncthreads();  // SEEN
    out[threadIdx.x] = x[threadIdx.x];
}"""
)


def test_a_flag_tells_of_the_launches_before_its_own(seed: int) -> None:
    x, out = DeviceArray.empty(WIDTH, np.float32), DeviceArray.empty(WIDTH, np.float32)
    flag = DeviceArray.from_numpy(np.zeros(1, np.uint32))
    kernels = [
        RawModule(code=code, settings=Settings("check", seed, device=device)).get_function("k")
        for code, device in ((WRITE, 0), (SIGNAL, 0), (READ, 1))
    ]
    with closing(CudaStream("device 0")) as first, closing(CudaStream("device 1")) as second:
        kernels[2]((1,), (WIDTH,), (flag, x, out), stream=second)
        kernels[0]((1,), (WIDTH,), (x,), stream=first)
        kernels[1]((1,), (1,), (flag,), stream=first)
        second.synchronize()
    assert np.array_equal(out.numpy(), np.arange(WIDTH))


def test_a_launch_after_the_flags_is_not_told_of(seed: int) -> None:
    x, out = DeviceArray.empty(WIDTH, np.float32), DeviceArray.empty(WIDTH, np.float32)
    flag = DeviceArray.from_numpy(np.zeros(1, np.uint32))
    kernels = [
        RawModule(code=code, settings=Settings("check", seed, device=device)).get_function("k")
        for code, device in ((WRITE, 0), (SIGNAL, 0), (READ, 1))
    ]
    with closing(CudaStream("device 0")) as first, closing(CudaStream("device 1")) as second:
        kernels[1]((1,), (1,), (flag,), stream=first)
        kernels[0]((1,), (WIDTH,), (x,), stream=first)
        first.record().reached.result()  # the writer has ended, but nobody was told
        kernels[2]((1,), (WIDTH,), (flag, x, out), stream=second)
        with pytest.raises(KernelError, match=r"race: read of .* of another launch"):
            second.synchronize()


@dataclass(frozen=True)
class Rank:
    """What a process needs to play one device: picklable."""

    number: int
    source: str
    mode: Mode
    seed: int
    names: tuple[str, str]


def play(rank: Rank, results: "Queue[str]") -> None:
    """One device in a process of its own; its peer's memory is mapped at another address."""
    slab = [DeviceArray.shared(name, (2 * WIDTH + 1,), np.float32, create=False) for name in rank.names]
    mine = DeviceArray.from_numpy(np.arange(WIDTH, dtype=np.float32) * (rank.number + 1))
    out = DeviceArray.empty((NUM_ROUNDS, WIDTH), np.float32)
    own, peer = slab[rank.number], slab[1 - rank.number]
    flags = [np.uint64(array.pointer + 8 * WIDTH) for array in (own, peer)]
    settings = Settings(mode=rank.mode, seed=rank.seed + rank.number, device=rank.number, watchdog_s=20.0)
    kernel = RawModule(code=rank.source, settings=settings).get_function("k")
    try:
        kernel((1,), (WIDTH,), (mine, own, peer, *flags, out, np.uint32(1), np.int32(NUM_ROUNDS)))
    except KernelError as error:
        results.put(str(error))
    else:
        results.put("right" if np.array_equal(out.numpy(), SUMS) else "wrong numbers")


def exchange_as_processes(source: str, mode: Mode, seed: int) -> list[str]:
    """What each of two processes says of the exchange: `right`, `wrong numbers` or its error."""
    RawModule(code=source, settings=Settings(mode=mode))  # compiled once, here
    prefix = f"/tokenstage-test-{os.getpid()}"
    names = (f"{prefix}-0", f"{prefix}-1")
    slabs = [DeviceArray.shared(name, (2 * WIDTH + 1,), np.float32, create=True) for name in names]
    context = multiprocessing.get_context("spawn")
    results: Queue[str] = context.Queue()
    ranks = [context.Process(target=play, args=(Rank(n, source, mode, seed, names), results)) for n in range(2)]
    for process in ranks:
        process.start()
    said = [results.get(timeout=60) for _ in ranks]
    for process in ranks:
        process.join()
    for slab in slabs:
        slab.free()
    return said


@pytest.mark.parametrize(("mode", "seed"), [("fast", 0), ("check", 3)])
def test_two_devices_exchange_as_processes(mode: Mode, seed: int) -> None:
    assert exchange_as_processes(EXCHANGE, mode, seed) == ["right", "right"]


def test_a_race_between_processes_names_the_other_process_and_both_lines() -> None:
    source = EXCHANGE.replace("load_acquire_system", "load_acquire_gpu")
    said = exchange_as_processes(source, "check", 3)
    read, write = (f"kernel.cu:{line_of(source, text)}" for text in ("out[round", "peer_slots[slot] ="))
    assert any("of process" in words and f"at {read}\n  against {write}" in words for words in said)
    assert not any("watchdog" in words for words in said)


WAIT = PTX + 'extern "C" __global__ void k(unsigned* flag) { while (ptx::load_acquire_system(flag) == 0u) {} }'


def come_late(name: str, late_s: float, is_ready: Event) -> None:
    """Works for a while before it sets the flag that the other process waits for."""
    flag = DeviceArray.shared(name, (1,), np.uint32, create=False)
    work, signal = (RawModule(code=code).get_function("k") for code in (WRITE, SIGNAL))
    x = DeviceArray.empty(WIDTH, np.float32)
    is_ready.set()
    started = time.monotonic()
    while time.monotonic() < started + late_s:
        work((1,), (WIDTH,), (x,))
    signal((1,), (1,), (flag,))


def test_the_watchdog_waits_while_another_process_gets_on() -> None:
    for code in (WRITE, SIGNAL):
        RawModule(code=code)  # compiled here
    name = f"/tokenstage-test-{os.getpid()}-late"
    flag = DeviceArray.shared(name, (1,), np.uint32, create=True)
    context = multiprocessing.get_context("spawn")
    is_ready = context.Event()
    process = context.Process(target=come_late, args=(name, 1.5, is_ready))
    process.start()
    try:
        kernel = RawModule(code=WAIT, settings=Settings(watchdog_s=0.7)).get_function("k")
        is_ready.wait()
        kernel((1,), (1,), (flag,))
    finally:
        process.join()
        flag.free()


def test_nothing_shared_is_left_behind() -> None:
    name = f"/tokenstage-test-{os.getpid()}-left"
    slab = DeviceArray.shared(name, (8,), np.float32, create=True)
    made = {path.name for path in Path("/dev/shm").glob(f"{name[1:]}*")}  # noqa: S108 - where POSIX shared memory is
    slab.free()
    assert made == {name[1:], f"{name[1:]}.ledger"}
    assert not list(Path("/dev/shm").glob(f"{name[1:]}*"))  # noqa: S108
