// Computes  out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n]. x: [T, K], T ≤ 8; weight: [N, K]; bias: [N] or null;
//           out: [T, N]. x, weight, bias are bf16 and out bf16 or float, or all are float.
// Owns      A block owns some outputs n of all rows, and its warps take turns over K. bf16: 16 outputs, 8 warps (fewer
//           where K has fewer turns), turns of 128 k. For the tensor core the 16 rows of weight are the large operand
//           and the rows of x the 8 columns. Of 32 k a lane takes 8 neighbours for itself, of weight and of x alike: it
//           is all one which k is called which, and so each fragment is one load. float: 4 warps, turns of 64 k; four
//           groups of 8 lanes with 4 outputs each (of 8 rows: 2). A kernel for each of 1, 2, 4, 8 rows.
// Traffic   Reads weight once, in 16-byte loads of at least 64 neighbouring bytes a row; x from L1, half as many bytes
//           as of weight (float: a quarter for each row; of 8 rows: half). Shared memory: 5 KB (float: 1 KB at most).
// Bound     Memory: N·K elements of weight. 4096² of bf16 are 33.5 MB, 7.0 µs at 4.8 TB/s. There to hide 0.8 µs takes
//           29 KB in flight a multiprocessor: at most 80 registers let 3 blocks, 24 warps with 8 loads of weight each,
//           hold 96 KB. float: 64 registers for 1 row let 8 blocks with 8 loads of weight a lane hold 128 KB, and 128
//           for 8 rows 4 blocks with 4 loads 32 KB; 4096 outputs are 2 or 4 blocks a multiprocessor, 32 KB both. The
//           bounds on blocks matter: without them the compiler saves registers by loading late. 8 rows would keep CUDA
//           cores busy with bf16 all the time that the weight takes; the tensor core idles.
// Numerics  fp32, in an order that depends on K alone: a warp's own k one after another (bf16 by mma.m16n8k16, float by
//           fmaf and then over lanes in a tree), then the warps, then bias; one rounding. Columns of an mma do not
//           touch each other: a row's bits depend neither on T nor on its place.
//           Tolerance: 2⁻²³·(K/128 + 16)·Σ|x·weight|, for tensor cores may cut where they should round, and 1 ulp of
//           out (float: K/64, the longest chain of roundings).
// Requires  1 ≤ T ≤ 8, N ≥ 1; K a multiple of 16 bytes, rows aligned to 16 bytes; 128 to 256 threads (float: 128, and T
//           within `max_rows`). Checked by gemv.py.
#include "common.cuh"
#include "ptx.cuh"

namespace of_bf16 {
constexpr i32 max_rows = 8;
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
    for (i32 c = 0; c < num_chunks; ++c)
        if (is_whole || k - k % chunk + c * chunk < depth)  // of the whole warp
            multiply(sums, loaded[c][0], loaded[c][1], loaded[c][2]);
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
    for (i32 w = 0; w < num_warps; ++w)
        if (w < blockDim.x / 32) sum += partial[w][row * row_stride + output];
    if (bias != nullptr) sum += to_float(bias[first + output]);
    out[static_cast<i64>(row) * num_outputs + first + output] = from_float<Out>(sum);
}

namespace of_float {
constexpr i32 num_warps = 4;
constexpr i32 group_lanes = 8;  // a row of weight is theirs, 128 neighbouring bytes at a time
constexpr i32 num_groups = 32 / group_lanes;
constexpr i32 chunk = group_lanes * Vector<float>::width;
constexpr i32 num_chunks = 2;  // in flight together
constexpr i32 turn = num_chunks * chunk;

// What a block does for up to `max_rows` rows. Sum s of a group is of its output s % num_outputs and row s / num_outputs.
template <i32 max_rows> struct Tile {
    static constexpr i32 num_outputs = max_rows <= 4 ? 4 : 2;  // of a group
    static constexpr i32 num_sums = num_outputs * max_rows, block_outputs = num_groups * num_outputs;
    static_assert(num_groups * num_sums <= 32 * num_warps, "a thread adds up what the warps have of one sum");
};
}  // namespace of_float

// Adds up values over the lanes of a group, in the same tree for any `count`. At each step lanes keep one half of the
// values and send the other: returns the number of the first value that is left with this lane.
template <i32 count> __device__ __forceinline__ i32 sum_over_group(float (&values)[count], i32 lane) {
    using of_float::group_lanes;
    i32 first = 0;
#pragma unroll
    for (i32 distance = group_lanes / 2; distance > 0; distance /= 2) {
        const i32 half = count * distance / group_lanes;  // 0: one value is left, and every lane keeps it
        const bool has_upper = (lane & distance) != 0;
        if (half == 0) values[0] += __shfl_xor_sync(full_warp, values[0], distance);
#pragma unroll
        for (i32 i = 0; i < half; ++i) {
            const float lower = values[i], upper = values[i + half];
            const float kept = has_upper ? upper : lower, sent = has_upper ? lower : upper;
            values[i] = kept + __shfl_xor_sync(full_warp, sent, distance);
        }
        if (has_upper) first += half;
    }
    return first;
}

// Adds a group's turn, whose elements of K begin at `k` for this lane. All loads are issued before the first product.
template <bool is_whole, i32 max_rows, i32 num_outputs>
__device__ __forceinline__ void take_turn(float (&sums)[max_rows * num_outputs],
                                          const float* const (&weights)[num_outputs], const float* x, i32 num_rows,
                                          i32 k, i32 depth) {
    using namespace of_float;
    Vector<float> weight[num_chunks][num_outputs] = {}, rows[num_chunks][max_rows] = {};
#pragma unroll
    for (i32 c = 0; c < num_chunks; ++c) {
        if (!is_whole && k + c * chunk >= depth) continue;
#pragma unroll
        for (i32 n = 0; n < num_outputs; ++n) weight[c][n] = load_vector(weights[n] + k + c * chunk);
#pragma unroll
        for (i32 t = 0; t < max_rows; ++t)
            rows[c][t] = load_vector(x + static_cast<i64>(min(t, num_rows - 1)) * depth + k + c * chunk);
    }
#pragma unroll
    for (i32 c = 0; c < num_chunks; ++c)
#pragma unroll
        for (i32 i = 0; i < Vector<float>::width; ++i)
#pragma unroll
            for (i32 s = 0; s < max_rows * num_outputs; ++s)
                sums[s] = fmaf(weight[c][s % num_outputs].elements[i], rows[c][s / num_outputs].elements[i], sums[s]);
}

template <i32 max_rows>
__global__ void __launch_bounds__(128, max_rows <= 2 ? 6 : 4)
gemv_float(float* out, const float* x, const float* weight, const float* bias, i32 num_rows, i32 num_outputs,
           i32 depth) {
    using namespace of_float;
    using Own = Tile<max_rows>;
    __shared__ float partial[num_warps][num_groups * Own::num_sums];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / group_lanes;
    const i32 first = blockIdx.x * Own::block_outputs;
    // Rows that do not exist are read as the last one, and what comes of them is dropped: loads without conditions.
    const float* weights[Own::num_outputs];
#pragma unroll
    for (i32 n = 0; n < Own::num_outputs; ++n)
        weights[n] = weight + static_cast<i64>(min(first + group * Own::num_outputs + n, num_outputs - 1)) * depth;

    float sums[Own::num_sums] = {};
    const i32 own = lane % group_lanes * Vector<float>::width;
    i32 begin = warp * turn;
    for (; begin + turn <= depth; begin += num_warps * turn)
        take_turn<true, max_rows, Own::num_outputs>(sums, weights, x, num_rows, begin + own, depth);
    if (begin < depth) take_turn<false, max_rows, Own::num_outputs>(sums, weights, x, num_rows, begin + own, depth);

    const i32 first_sum = sum_over_group(sums, lane);
    constexpr i32 num_left = Own::num_sums < group_lanes ? 1 : Own::num_sums / group_lanes;
    constexpr i32 num_copies = Own::num_sums < group_lanes ? group_lanes / Own::num_sums : 1;
    if (lane % num_copies == 0)
#pragma unroll
        for (i32 i = 0; i < num_left; ++i) partial[warp][group * Own::num_sums + first_sum + i] = sums[i];
    __syncthreads();  // no thread reads `partial` before every warp has written its own

    const i32 row = threadIdx.x / Own::block_outputs, number = threadIdx.x % Own::block_outputs;
    if (row >= num_rows || first + number >= num_outputs) return;
    const i32 own_sum = number / Own::num_outputs * Own::num_sums + row * Own::num_outputs + number % Own::num_outputs;
    float sum = 0.0f;
#pragma unroll
    for (i32 w = 0; w < num_warps; ++w) sum += partial[w][own_sum];
    if (bias != nullptr) sum += bias[first + number];
    out[static_cast<i64>(row) * num_outputs + first + number] = sum;
}
