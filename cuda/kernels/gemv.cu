// Computes  out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n]. x: [T, K], T ≤ 8; weight: [N, K]; bias: [N] or null;
//           out: [T, N]. x, weight, bias are bf16 and out bf16 or float, or all are float.
// Owns      A block owns some outputs n of all rows, and its warps take turns over K. bf16: 16 outputs, 8 warps, turns
//           of 128 k. For the tensor core the 16 rows of weight are the large operand and the rows of x the 8 columns.
//           Of 32 k a lane takes 8 neighbours for itself, of weight and of x alike: it is all one which k is called
//           which, and so each fragment is one load. float: 4 outputs, 4 warps, turns of 128 k; a lane takes 4 k.
// Traffic   Reads weight once, in 16-byte loads of at least 64 neighbouring bytes a row; x from L1, half as many bytes
//           as of weight (float: twice as many). Shared memory: 5 KB (float: 512 bytes).
// Bound     Memory: N·K elements of weight. 4096² of bf16 are 33.5 MB, 7.0 µs at 4.8 TB/s. There to hide 0.8 µs takes
//           29 KB in flight a multiprocessor: at most 80 registers let 3 blocks, 24 warps with 8 loads of weight each,
//           hold 96 KB (float: 128 registers, 4 blocks, 16 warps with 4 loads, 32 KB). The bounds on blocks matter:
//           without them the compiler saves registers by loading late. 8 rows would keep CUDA cores busy with bf16
//           all the time that the weight takes; the tensor core idles.
// Numerics  fp32, in an order that depends on K alone: a warp's own k one after another (bf16 by mma.m16n8k16, float by
//           fmaf and then over lanes in a tree), then the warps, then bias; one rounding. Columns of an mma do not
//           touch each other: a row's bits depend neither on T nor on its place.
//           Tolerance: 2⁻²³·(K/128 + 16)·Σ|x·weight|, for tensor cores may cut where they should round, and 1 ulp of
//           out.
// Requires  1 ≤ T ≤ 8, N ≥ 1; K a multiple of 16 bytes, rows aligned to 16 bytes; 256 threads (float: 128). Checked by
//           gemv.py.
#include "common.cuh"
#include "ptx.cuh"

constexpr i32 max_rows = 8;

namespace of_bf16 {
constexpr i32 num_warps = 8;
constexpr i32 block_outputs = 16;
constexpr i32 chunk = 32;      // elements of K that a warp's lanes load at once, of each row
constexpr i32 num_chunks = 4;  // in flight together
constexpr i32 turn = num_chunks * chunk;
constexpr i32 row_stride = block_outputs + 4;  // of partial sums: the pad keeps a warp's stores on different banks
}  // namespace of_bf16

using Fragments = Vector<u32>;  // 8 neighbouring elements of K: the registers of two mma's

// sums += the 16 rows of weight (`low`: 0-7, `high`: 8-15) times the rows of x, over 32 elements of K.
__device__ __forceinline__ void multiply(float (&sums)[4], const Fragments& low, const Fragments& high,
                                         const Fragments& x) {
#pragma unroll
    for (i32 i = 0; i < 4; i += 2) {
        const u32 a[4] = {low.elements[i], high.elements[i], low.elements[i + 1], high.elements[i + 1]};
        const u32 b[2] = {x.elements[i], x.elements[i + 1]};
        ptx::mma_m16n8k16_bf16(sums, a, b);
    }
}

// Adds a warp's turn, whose elements of K begin at `k` for this lane. All loads are issued before the first product.
template <bool is_whole>
__device__ __forceinline__ void take_turn(float (&sums)[4], const bf16* low_row, const bf16* high_row,
                                          const bf16* x_row, i32 k, i32 depth) {
    using namespace of_bf16;
    const bf16* const rows[3] = {low_row, high_row, x_row};
    Fragments loaded[num_chunks][3] = {};
#pragma unroll
    for (i32 c = 0; c < num_chunks; ++c)
#pragma unroll
        for (i32 r = 0; r < 3; ++r)
            if (is_whole || k + c * chunk < depth)
                loaded[c][r] = load_vector(reinterpret_cast<const u32*>(rows[r] + k + c * chunk));
#pragma unroll
    for (i32 c = 0; c < num_chunks; ++c) multiply(sums, loaded[c][0], loaded[c][1], loaded[c][2]);
}

template <class Out>
__global__ void __launch_bounds__(256, 3)
gemv_bf16(Out* out, const bf16* x, const bf16* weight, const bf16* bias, i32 num_rows, i32 num_outputs, i32 depth) {
    using namespace of_bf16;
    __shared__ float partial[num_warps][max_rows * row_stride];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4;
    const i32 first = blockIdx.x * block_outputs;
    // Rows that do not exist are read as the last one, and what comes of them is dropped: loads without conditions.
    const bf16* const low_row = weight + static_cast<i64>(min(first + group, num_outputs - 1)) * depth;
    const bf16* const high_row = weight + static_cast<i64>(min(first + group + 8, num_outputs - 1)) * depth;
    const bf16* const x_row = x + static_cast<i64>(min(group, num_rows - 1)) * depth;

    float sums[4] = {};
    i32 begin = warp * turn;
    for (; begin + turn <= depth; begin += num_warps * turn)
        take_turn<true>(sums, low_row, high_row, x_row, begin + pair * 8, depth);
    if (begin < depth) take_turn<false>(sums, low_row, high_row, x_row, begin + pair * 8, depth);
#pragma unroll
    for (i32 i = 0; i < 4; ++i) partial[warp][(pair * 2 + i % 2) * row_stride + group + i / 2 * 8] = sums[i];
    __syncthreads();  // no thread reads `partial` before every warp has written its own

    const i32 row = threadIdx.x / block_outputs, output = threadIdx.x % block_outputs;
    if (row >= num_rows || first + output >= num_outputs) return;
    float sum = 0.0f;
#pragma unroll
    for (i32 w = 0; w < num_warps; ++w) sum += partial[w][row * row_stride + output];
    if (bias != nullptr) sum += to_float(bias[first + output]);
    out[static_cast<i64>(row) * num_outputs + first + output] = from_float<Out>(sum);
}

namespace of_float {
constexpr i32 num_warps = 4;
constexpr i32 block_outputs = 4;
constexpr i32 turn = 32 * Vector<float>::width;
constexpr i32 num_sums = block_outputs * max_rows;  // as many as a warp has lanes
}  // namespace of_float

// Lane l gets the sum over the warp of value l, all of them in the same tree of additions.
__device__ __forceinline__ float sum_of_own_value(float (&values)[32]) {
#pragma unroll
    for (i32 distance = 16; distance > 0; distance /= 2)
#pragma unroll
        for (i32 i = 0; i < distance; ++i) {
            const float lower = values[i], upper = values[i + distance];
            const bool has_upper = (threadIdx.x & distance) != 0;
            const float kept = has_upper ? upper : lower, sent = has_upper ? lower : upper;
            values[i] = kept + __shfl_xor_sync(full_warp, sent, distance);
        }
    return values[0];
}

__global__ void __launch_bounds__(128, 4)
gemv_float(float* out, const float* x, const float* weight, const float* bias, i32 num_rows, i32 num_outputs,
           i32 depth) {
    using namespace of_float;
    constexpr i32 width = Vector<float>::width;
    __shared__ float partial[num_warps][num_sums];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * block_outputs;
    float sums[num_sums] = {};
    for (i32 k = warp * turn + lane * width; k < depth; k += num_warps * turn) {
        Vector<float> weights[block_outputs], rows[max_rows];
#pragma unroll
        for (i32 n = 0; n < block_outputs; ++n)
            weights[n] = load_vector(weight + static_cast<i64>(min(first + n, num_outputs - 1)) * depth + k);
#pragma unroll
        for (i32 t = 0; t < max_rows; ++t)
            rows[t] = load_vector(x + static_cast<i64>(min(t, num_rows - 1)) * depth + k);
#pragma unroll
        for (i32 i = 0; i < width; ++i)
#pragma unroll
            for (i32 s = 0; s < num_sums; ++s)
                sums[s] = fmaf(weights[s % block_outputs].elements[i], rows[s / block_outputs].elements[i], sums[s]);
    }
    partial[warp][lane] = sum_of_own_value(sums);
    __syncthreads();  // no thread reads `partial` before every warp has written its own

    const i32 row = threadIdx.x / block_outputs, output = first + threadIdx.x % block_outputs;
    if (row >= num_rows || output >= num_outputs) return;
    float sum = 0.0f;
#pragma unroll
    for (i32 w = 0; w < num_warps; ++w) sum += partial[w][threadIdx.x];
    if (bias != nullptr) sum += bias[output];
    out[static_cast<i64>(row) * num_outputs + output] = sum;
}
