"""Small correct kernels to plant bugs in. The upper-case comments mark the places."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PTX = f'#include "{Path(__file__).parents[3] / "cuda" / "kernels" / "ptx.cuh"}"\n'
Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class Subject:
    """A kernel `k`, what it runs on, and what its arrays must hold afterwards (None: anything)."""

    source: str
    arrays: Callable[[], Arrays]
    expected: Callable[[Arrays], list[NDArray[Any] | None]]
    how: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0


def random(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-16, 17, shape).astype(np.float32) / np.float32(8)


def softmax(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    return np.asarray(wide / wide.sum(axis=1, keepdims=True), np.float32)


SOFTMAX = Subject(
    """
extern "C" __global__ void k(const float* in, float* out, int n) {
    __shared__ float partial[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const float* row = in + blockIdx.x * n;
    float peak = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) peak = fmaxf(peak, row[i]);
    /* ENTER */
    for (int d = 16; d > 0; d /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, d));
    if (lane == 0) partial[warp] = peak;
    __syncthreads();  // WRITTEN
    peak = partial[0];
    for (int w = 1; w < num_warps; ++w) peak = fmaxf(peak, partial[w]);
    __syncthreads();  // READ
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(row[i] - peak);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();  // SUMMED
    sum = 0.0f;
    for (int w = 0; w < num_warps; ++w) sum += partial[w];
    /* LEAVE */
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = __expf(row[i] - peak) / sum;
}""",
    lambda: [random((3, 150)), np.zeros((3, 150), np.float32)],
    lambda arrays: [None, softmax(arrays[0])],
    {"grid": 3, "block": 128, "scalars": (np.int32(150),)},
    1e-5,
)

PIPELINE = Subject(
    PTX
    + """
extern "C" __global__ void k(const float* in, float* out, int num_tiles) {
    __shared__ __align__(16) float tile[2][256];
    int i = threadIdx.x;
    ptx::cp_async_16(&tile[0][4 * i], in + 4 * i);
    ptx::cp_async_commit();  // FIRST
    for (int t = 0; t < num_tiles; ++t) {
        if (t + 1 < num_tiles) ptx::cp_async_16(&tile[(t + 1) % 2][4 * i], in + (t + 1) * 256 + 4 * i);
        ptx::cp_async_commit();  // NEXT
        ptx::cp_async_wait<1>();
        __syncthreads();  // LANDED
        for (int j = i; j < 256; j += 64) out[t * 256 + j] = tile[t % 2][255 - j];
        __syncthreads();  // CONSUMED
    }
}""",
    lambda: [random((5, 256)), np.zeros((5, 256), np.float32)],
    lambda arrays: [None, arrays[0][:, ::-1]],
    {"block": 64, "scalars": (np.int32(5),)},
)


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """For values that bfloat16 holds exactly."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


MMA = Subject(
    PTX
    + """
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* d) {
    __shared__ __align__(16) unsigned short a_tile[16 * 16], b_tile[16 * 8];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) a_tile[i] = a[i];
    for (int i = lane; i < 128; i += 32) b_tile[i] = b[i];
    __syncwarp();
    unsigned ra[4], rb[4];
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    ptx::ldmatrix_x4(ra, a_tile + lane % 16 * 16 + lane / 16 * 8);
    ptx::ldmatrix_x4_trans(rb, b_tile + lane % 16 * 8);
    const unsigned first[2] = {rb[0], rb[1]};
    ptx::mma_m16n8k16_bf16(acc, ra, first);
    for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = acc[i];
}""",
    lambda: [bf16(random((16, 16))), bf16(random((16, 8), 1)), np.zeros((16, 8), np.float32)],
    lambda arrays: [None, None, widened(arrays[0]) @ widened(arrays[1])],
)

HISTOGRAM = Subject(
    """
extern "C" __global__ void k(const int* in, int* out) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();  // ZEROED
    atomicAdd(&bins[in[blockIdx.x * blockDim.x + threadIdx.x] & 15], 1);
    __syncthreads();  // COUNTED
    if (threadIdx.x < 16) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}""",
    lambda: [np.random.default_rng(0).integers(0, 64, 256).astype(np.int32), np.zeros(16, np.int32)],
    lambda arrays: [None, np.bincount(arrays[0] & 15, minlength=16).astype(np.int32)],
    {"grid": 4, "block": 64},
)

GATHER = Subject(
    """
extern "C" __global__ void k(const int* table, const float* pool, float* out, int row_stride) {
    long long page = table[blockIdx.x];
    float value = 0.0f;
    if (page >= 0) value = pool[page * 64 + threadIdx.x];
    out[blockIdx.x * row_stride + threadIdx.x] = value;
}""",
    lambda: [np.array([3, -1, 0, 1], np.int32), random((4, 64)), np.zeros((4, 64), np.float32)],
    lambda arrays: [None, None, np.where(arrays[0][:, None] >= 0, arrays[1][arrays[0]], 0)],
    {"grid": 4, "block": 64, "scalars": (np.int32(64),)},
)

MESSAGE = Subject(
    PTX
    + """
extern "C" __global__ void k(unsigned* flag, int* data, int* out) {
    int i = threadIdx.x;
    if (blockIdx.x == 0) {
        data[i] = 7 + i;
        __syncthreads();  // FILLED
        if (i == 0) { ptx::store_release_gpu(flag, 1u); }
    } else {
        if (i == 0) { while (ptx::load_acquire_gpu(flag) == 0u) {} }
        __syncthreads();  // SEEN
        out[i] = data[63 - i];
    }
}""",
    lambda: [np.zeros(1, np.uint32), np.zeros(64, np.int32), np.zeros(64, np.int32)],
    lambda _: [None, None, 7 + np.arange(64, dtype=np.int32)[::-1]],
    {"grid": 2, "block": 64, "cooperative": True, "watchdog_s": 2.0},
)

PRODUCER = Subject(
    PTX
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
}""",
    lambda: [np.zeros((6, 32), np.int32)],
    lambda _: [np.arange(192, dtype=np.int32).reshape(6, 32)[:, ::-1]],
    {"block": 64},
)

SUBJECTS = {
    "softmax": SOFTMAX,
    "pipeline": PIPELINE,
    "mma": MMA,
    "histogram": HISTOGRAM,
    "gather": GATHER,
    "message": MESSAGE,
    "producer": PRODUCER,
}
