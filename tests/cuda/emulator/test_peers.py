import multiprocessing
import os
from multiprocessing.queues import Queue

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda.emulator import DeviceArray, KernelError, RawModule, Settings, Stream
from cuda.emulator.build import Mode
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
    with Stream("device 0") as first, Stream("device 1") as second:
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


def rank_process(rank: int, mode: Mode, names: tuple[str, str], results: "Queue[tuple[int, bool]]") -> None:
    """One device in a process of its own; its peer's memory is mapped at another address."""
    slab = [DeviceArray.shared(name, (2 * WIDTH + 1,), np.float32, create=False) for name in names]
    mine = DeviceArray.from_numpy(np.arange(WIDTH, dtype=np.float32) * (rank + 1))
    out = DeviceArray.empty((NUM_ROUNDS, WIDTH), np.float32)
    flag = [np.uint64(array.pointer + 8 * WIDTH) for array in slab]
    args = (mine, slab[rank], slab[1 - rank], flag[rank], flag[1 - rank], out, np.uint32(1), np.int32(NUM_ROUNDS))
    RawModule(code=EXCHANGE, settings=Settings(mode=mode, seed=rank)).get_function("k")((1,), (WIDTH,), args)
    results.put((rank, bool(np.array_equal(out.numpy(), SUMS))))


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_two_devices_exchange_as_processes(mode: Mode) -> None:
    RawModule(code=EXCHANGE, settings=Settings(mode=mode))  # compiled once, here
    names = (f"/tokenstage-test-{os.getpid()}-0", f"/tokenstage-test-{os.getpid()}-1")
    slabs = [DeviceArray.shared(name, (2 * WIDTH + 1,), np.float32, create=True) for name in names]
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, bool]] = context.Queue()
    ranks = [context.Process(target=rank_process, args=(rank, mode, names, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    done = {results.get(timeout=60), results.get(timeout=60)}
    for process in ranks:
        process.join()
    for slab in slabs:
        slab.free()
    assert done == {(0, True), (1, True)}
