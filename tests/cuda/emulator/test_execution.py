import numpy as np
import pytest

from cuda.emulator import DeviceArray, RawModule, Settings
from tests.cuda.emulator.launching import floats, run

REVERSE = """
extern "C" __global__ void k(float* x) {
    extern __shared__ __align__(16) float dynamic[];
    __shared__ float fixed[256];
    int i = threadIdx.x, base = blockIdx.x * blockDim.x;
    fixed[i] = x[base + i];
    dynamic[i] = fixed[i] + 1.0f;
    __syncthreads();
    x[base + i] = fixed[blockDim.x - 1 - i] + dynamic[blockDim.x - 1 - i];
}
"""


@pytest.mark.parametrize("block", [1, 31, 33, 256])
def test_a_barrier_makes_shared_memory_visible(block: int, seed: int) -> None:
    x = floats(5 * block)
    (got,) = run(REVERSE, [x], grid=5, block=block, seed=seed, shared_mem=4 * block)
    assert np.array_equal(got, (2 * x.reshape(5, block)[:, ::-1] + 1).ravel())


def test_shared_memory_starts_as_nan_in_every_block() -> None:
    body = """
    extern "C" __global__ void k(float* out) {
        extern __shared__ float dynamic[];
        __shared__ float fixed[4];
        out[blockIdx.x] = fixed[1] + dynamic[1];
        fixed[1] = dynamic[1] = 0.0f;
    }"""
    (got,) = run(body, [floats(3)], grid=3, block=1, shared_mem=16)
    assert np.isnan(got).all()


def test_dynamic_shared_memory_may_be_of_any_type() -> None:
    body = """
    template <class T> struct Pair { T x, y; };
    extern "C" __global__ void k(float* out) {
        extern __shared__ Pair<float> pairs[];
        extern __shared__ unsigned char bytes[];
        pairs[threadIdx.x] = {1.0f, 2.0f};
        __syncwarp();
        out[threadIdx.x] = reinterpret_cast<float*>(bytes)[threadIdx.x];
    }"""
    (got,) = run(body, [floats(32)], shared_mem=256)
    assert np.array_equal(got, np.tile([1, 2], 16))


WARP = """
extern "C" __global__ void k(int* out) {
    int lane = threadIdx.x;
    unsigned full = 0xffffffffu;
    int* row = out + lane * 6;
    row[0] = __shfl_sync(full, lane * 10, 5);
    row[1] = __shfl_up_sync(full, lane, 3);
    row[2] = __shfl_xor_sync(full, lane, 9);
    row[3] = (int)__ballot_sync(full, lane % 3 == 0);
    row[4] = __any_sync(full, lane == 31);
    row[5] = lane < 16 ? __shfl_xor_sync(0xffffu, lane, 1) : __shfl_sync(0xffff0000u, lane, 16);
}
"""


def test_warp_operations_compute_what_cuda_defines(seed: int) -> None:
    (flat,) = run(WARP, [np.zeros(32 * 6, np.int32)], seed=seed)
    got, lane = flat.reshape(32, 6).T, np.arange(32)
    expected = [
        np.full(32, 50),
        np.where(lane < 3, lane, lane - 3),
        lane ^ 9,
        np.full(32, sum(1 << i for i in range(0, 32, 3)), np.int64).astype(np.int32),
        np.ones(32),
        np.where(lane < 16, lane ^ 1, 16),
    ]
    for column, want in zip(got, expected, strict=True):
        assert np.array_equal(column, want)


def test_exited_lanes_do_not_hold_up_the_others(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* out) {
        if (threadIdx.x >= 20) return;
        out[threadIdx.x] = __ballot_sync(0xffffffffu, 1) == 0xfffffu;
        __syncthreads();
        out[threadIdx.x] += out[19 - threadIdx.x] > 0 ? 1 : 100;
    }"""
    (got,) = run(body, [np.zeros(20, np.int32)], seed=seed)
    assert (got >= 2).all()
    assert (got < 100).all()


def test_votes_over_the_block_hear_every_thread(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* out) {
        int one = __syncthreads_or(threadIdx.x == 77);
        int none = __syncthreads_or(threadIdx.x == 100);
        out[threadIdx.x] = one * 10 + none;
    }"""
    (got,) = run(body, [np.zeros(100, np.int32)], block=100, seed=seed)
    assert (got == 10).all()


def test_atomics_lose_nothing_over_blocks_and_os_threads(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* total, float* sum, int* peak) {
        atomicAdd(total, 1);
        atomicAdd(sum, 0.5f);
        atomicMax(peak, (int)(blockIdx.x * blockDim.x + threadIdx.x));
    }"""
    arrays = [DeviceArray.from_numpy(np.zeros(1, dtype)) for dtype in (np.int32, np.float32, np.int32)]
    kernel = RawModule(code=body, settings=Settings(seed=seed, num_workers=3)).get_function("k")
    kernel((10,), (50,), arrays)
    assert [array.numpy()[0] for array in arrays] == [500, 250.0, 499]


def test_a_spinning_thread_lets_the_one_it_waits_for_run(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* flag) {
        if (threadIdx.x == 0) while (atomicAdd(flag, 0) == 0) __nanosleep(20);
        if (threadIdx.x == 40) atomicExch(flag, 1);
    }"""
    (got,) = run(body, [np.zeros(1, np.int32)], block=64, seed=seed)
    assert got[0] == 1


def test_blocks_of_a_cooperative_launch_can_wait_for_each_other(seed: int) -> None:
    body = """
    extern "C" __global__ void k(unsigned* arrived) {
        if (threadIdx.x == 0) {
            atomicAdd(arrived, 1u);
            while (atomicAdd(arrived, 0u) < gridDim.x) __nanosleep(20);
        }
        __syncthreads();
    }"""
    (got,) = run(body, [np.zeros(1, np.uint32)], grid=6, block=40, seed=seed, cooperative=True)
    assert got[0] == 6


def test_the_same_seed_gives_the_same_schedule_and_others_differ() -> None:
    body = """
    extern "C" __global__ void k(int* next, int* order) {
        order[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
    }"""

    def order(seed: int) -> tuple[int, ...]:
        return tuple(run(body, [np.zeros(1, np.int32), np.zeros(128, np.int32)], grid=2, block=64, seed=seed)[1])

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(6)}) == 6
