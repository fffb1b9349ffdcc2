from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda.emulator.launching import failure, run

KERNELS = Path(__file__).parents[3] / "cuda" / "kernels"
INCLUDE = f'#include "{KERNELS / "ptx.cuh"}"\n'


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """For values that bfloat16 holds exactly."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


# Loads both operands through ldmatrix from row-major tiles, as kernels do, and stores by the manual's fragment tables.
MMA = (
    INCLUDE
    + """
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* d) {
    __shared__ __align__(16) unsigned short a_tile[16 * 16], b_tile[16 * 8];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) a_tile[i] = a[i];
    for (int i = lane; i < 128; i += 32) b_tile[i] = b[i];
    __syncwarp();
    unsigned ra[4], rb[4];
    float acc[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    ptx::ldmatrix_x4(ra, a_tile + (lane % 16) * 16 + lane / 16 * 8);
    ptx::ldmatrix_x4_trans(rb, b_tile + (lane % 16) * 8);
    const unsigned first[2] = {rb[0], rb[1]};
    ptx::mma_m16n8k16_bf16(acc, ra, first);
    for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = acc[i];
}"""
)


def test_mma_multiplies_what_ldmatrix_loads(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = (random.integers(-8, 9, shape).astype(np.float32) / np.float32(4) for shape in ((16, 16), (16, 8)))
    got = run(MMA, [bf16_bits(a), bf16_bits(b), np.zeros((16, 8), np.float32)], seed=seed)[2]
    assert np.array_equal(got, a @ b + 1)


COPY = (
    INCLUDE
    + """
extern "C" __global__ void k(const float* in, float* out) {
    __shared__ __align__(16) float tile[2][128];
    int i = threadIdx.x;
    ptx::cp_async_16(&tile[0][4 * i], in + 4 * i, i == 31 ? 8 : 16);
    ptx::cp_async_commit();
    ptx::cp_async_16(&tile[1][4 * i], in + 4 * i);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    float first = tile[0][127 - i];
    ptx::cp_async_wait<WAIT>();
    __syncthreads();
    out[i] = first;
    out[32 + i] = tile[1][95 - i];
}"""
)


def test_asynchronous_copies_have_landed_when_waited_for(seed: int) -> None:
    x = np.arange(128, dtype=np.float32)
    got = run(COPY.replace("WAIT", "0"), [x, np.zeros(64, np.float32)], seed=seed)[1]
    assert np.array_equal(got[:32], np.concatenate([[0, 0], x[96:126][::-1]]))
    assert np.array_equal(got[32:], x[64:96][::-1])


def test_a_copy_not_waited_for_is_late_under_odd_seeds() -> None:
    x = np.arange(128, dtype=np.float32)
    late = [np.isnan(run(COPY.replace("WAIT", "1"), [x, np.zeros(64, np.float32)], seed=s)[1]).any() for s in range(4)]
    assert late == [False, True, False, True]


def test_a_misaligned_asynchronous_copy_is_reported() -> None:
    body = COPY.replace("in + 4 * i,", "in + 1 + 4 * i,").replace("WAIT", "0")
    assert failure(body, [np.zeros(160, np.float32), np.zeros(64, np.float32)]).kind == "misaligned"


def test_named_barriers_let_a_producer_run_ahead(seed: int) -> None:
    body = (
        INCLUDE
        + """
    extern "C" __global__ void k(int* out) {
        __shared__ int slot[2][32];
        int lane = threadIdx.x % 32;
        if (threadIdx.x < 32) {
            for (int n = 0; n < 6; ++n) {
                if (n >= 2) ptx::barrier_sync(3 + n % 2, 64);
                slot[n % 2][lane] = n * 32 + lane;
                ptx::barrier_arrive(1 + n % 2, 64);
            }
        } else {
            for (int n = 0; n < 6; ++n) {
                ptx::barrier_sync(1 + n % 2, 64);
                out[n * 32 + lane] = slot[n % 2][31 - lane];
                if (n < 4) ptx::barrier_arrive(3 + n % 2, 64);
            }
        }
    }"""
    )
    (got,) = run(body, [np.zeros(192, np.int32)], block=64, seed=seed)
    assert np.array_equal(got, np.arange(192).reshape(6, 32)[:, ::-1].ravel())


def test_release_and_acquire_pass_a_value_between_blocks(seed: int) -> None:
    body = (
        INCLUDE
        + """
    extern "C" __global__ void k(unsigned* flag, int* data, int* out) {
        if (blockIdx.x == 0) {
            data[threadIdx.x] = 7 + threadIdx.x;
            __syncthreads();
            if (threadIdx.x == 0) ptx::store_release_gpu(flag, 1u);
        } else {
            if (threadIdx.x == 0) while (ptx::load_acquire_gpu(flag) == 0u) {}
            __syncthreads();
            out[threadIdx.x] = data[31 - threadIdx.x];
        }
    }"""
    )
    arrays = [np.zeros(1, np.uint32), np.zeros(32, np.int32), np.zeros(32, np.int32)]
    got = run(body, arrays, grid=2, seed=seed, cooperative=True)[2]
    assert np.array_equal(got, 7 + np.arange(32)[::-1])


def test_a_matrix_instruction_needs_the_whole_warp() -> None:
    body = MMA.replace("unsigned ra[4]", "if (lane > 30) return;\n unsigned ra[4]")
    arrays: list[NDArray[Any]] = [np.zeros(256, np.uint16), np.zeros(128, np.uint16), np.zeros(128, np.float32)]
    assert failure(body, arrays).kind == "warp-misuse"
