// Computes  out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n]. x: [T, K], weight: [N, K], bias: [N] or null, all bf16;
//           out: [T, N], bf16 or float.
// Owns      A block owns a tile of out, its 8 warps equal parts of it in registers. K is walked in steps of 64 through
//           a ring of stages in shared memory, which all threads fill by cp.async while the warps multiply.
// Traffic   A tile of M × N reads (M + N)·K elements, in 16-byte copies of 128 neighbouring bytes, mostly from L2.
//           Shared memory: 128·(M + N) bytes a stage, 96 KB for 128 × 128 × 3 stages, 64 × 64 × 6 and 64 × 32 × 8. A
//           row of a stage is 8 vectors of 16 bytes, vector v at v XOR row: neither copies nor ldmatrix meet in a bank.
// Bound     Many rows: compute, 2·T·N·K operations. mma.sync can reach the peak of sm_80 and sm_89, some 60 % of that
//           of sm_90 (wgmma) and less of sm_100's (tcgen05). At most 128 registers: shared memory decides that a block
//           has a multiprocessor of sm_80 or sm_89 for itself, and two (16 warps) share one of sm_90 or sm_100; a warp
//           has 16 independent mma's to hide their latency, 64 a step beside 24 ldmatrix and 8 copies. Few rows:
//           memory; with 32 columns N = 4,096 has 128 blocks with 7 steps of weight in flight, 28 KB each: about what
//           hides 0.8 µs at 4.8 TB/s.
// Numerics  fp32 in the registers of mma.m16n8k16, k after k from 0 to K, whichever the tile: no split of K, and rows
//           of an mma do not touch each other. A row's bits depend neither on T, nor on its place, nor on the tile
//           chosen. Bias is added last, one rounding. Tolerance: 2⁻²³·(K/16 + 8)·Σ|x·weight|, for tensor cores may cut
//           where they should round, and 1 ulp of out.
// Requires  K a multiple of 8 (16 bytes), matrices aligned to 16 bytes, 256 threads, 96 KB of dynamic shared memory.
//           Any T and N. Checked by gemm.py.
#include "common.cuh"
#include "ptx.cuh"

constexpr i32 num_threads = 256;
constexpr i32 num_warps = num_threads / 32;
constexpr i32 width = Vector<bf16>::width;
constexpr i32 step = 64;                    // k of a stage
constexpr i32 step_vectors = step / width;  // of a row
constexpr i32 mma_rows = 16, mma_columns = 8, mma_depth = 16;

// Where a vector of a stage's row lies, in elements.
__device__ __forceinline__ i32 place(i32 row, i32 vector) {
    return (row * step_vectors + (vector ^ row % step_vectors)) * width;
}

// What a thread copies of each stage: one vector of every 32nd row of a tile's operand.
template <i32 tile_rows> struct Copies {
    static constexpr i32 rows_apart = num_threads / step_vectors, count = tile_rows / rows_apart;
    const bf16* first;   // of the tile
    i32 offsets[count];  // from there to this thread's vectors at k = 0; negative where the matrix has no such row

    __device__ __forceinline__ Copies(const bf16* matrix, i32 first_row, i32 num_rows, i32 depth)
        : first(matrix + static_cast<i64>(first_row) * depth) {
#pragma unroll
        for (i32 n = 0; n < count; ++n) {
            const i32 row = threadIdx.x / step_vectors + n * rows_apart;
            offsets[n] = first_row + row < num_rows ? row * depth + vector() * width : -1;
        }
    }

    static __device__ __forceinline__ i32 vector() { return threadIdx.x % step_vectors; }

    // Queues the copies of k begin … into a stage; what lies outside the matrix becomes zero.
    __device__ __forceinline__ void queue(bf16* stage, i32 begin, i32 depth) const {
        const bool has_k = begin + vector() * width < depth;
#pragma unroll
        for (i32 n = 0; n < count; ++n) {
            const bool is_inside = has_k && offsets[n] >= 0;
            ptx::cp_async_16(stage + place(threadIdx.x / step_vectors, vector()) + n * rows_apart * step,
                             first + (is_inside ? offsets[n] + begin : 0), is_inside ? 16 : 0);
        }
    }
};

template <class Out> struct __align__(2 * sizeof(Out)) Pair {
    Out elements[2];
};

// Two neighbours of a row of out, as far as they exist.
template <class Out>
__device__ __forceinline__ void store_pair(Out* row, i32 column, i32 num_columns, const float (&values)[2]) {
    const Pair<Out> pair = {{from_float<Out>(values[0]), from_float<Out>(values[1])}};
    if (num_columns % 2 == 0) {  // then pairs are aligned, and none is cut by the end
        if (column < num_columns) *reinterpret_cast<Pair<Out>*>(row + column) = pair;
        return;
    }
    if (column < num_columns) row[column] = pair.elements[0];
    if (column + 1 < num_columns) row[column + 1] = pair.elements[1];
}

// The part of a tile that a warp owns, of `rows` × `columns` mma's.
template <i32 rows, i32 columns> struct WarpTile {
    static_assert(columns % 2 == 0, "weight's fragments are loaded two at a time");
    float sums[rows][columns][4] = {};

    // Adds one stage; `x` and `weight` are its rows, `first_row` and `first_column` of them are this warp's.
    __device__ __forceinline__ void multiply(const bf16* x, const bf16* weight, i32 first_row, i32 first_column) {
        const i32 lane = threadIdx.x % 32;
#pragma unroll
        for (i32 k = 0; k < step_vectors; k += mma_depth / width) {
            u32 a[rows][4], b[columns / 2][4];
#pragma unroll
            for (i32 r = 0; r < rows; ++r)  // rows 0-7 and 8-15 of the first 8 k, then of the others
                ptx::ldmatrix_x4(a[r], x + place(first_row + r * mma_rows + lane % 16, k + lane / 16));
#pragma unroll
            for (i32 c = 0; c < columns / 2; ++c)  // both halves of k for columns 0-7, then for 8-15
                ptx::ldmatrix_x4(b[c], weight + place(first_column + c * 2 * mma_columns + lane / 16 * 8 + lane % 8,
                                                      k + lane / 8 % 2));
#pragma unroll
            for (i32 r = 0; r < rows; ++r)
#pragma unroll
                for (i32 c = 0; c < columns; ++c) {
                    const u32 fragment[2] = {b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]};
                    ptx::mma_m16n8k16_bf16(sums[r][c], a[r], fragment);
                }
        }
    }

    // Lane l holds columns 2·(l % 4) and the next of rows l / 4 and l / 4 + 8 of each mma.
    template <class Out>
    __device__ __forceinline__ void store(Out* out, const bf16* bias, i32 first_row, i32 first_column, i32 num_rows,
                                          i32 num_columns) const {
        const i32 lane = threadIdx.x % 32;
#pragma unroll
        for (i32 c = 0; c < columns; ++c) {
            const i32 column = first_column + c * mma_columns + lane % 4 * 2;
            float added[2] = {0.0f, 0.0f};
            if (bias != nullptr && column < num_columns) added[0] = to_float(bias[column]);
            if (bias != nullptr && column + 1 < num_columns) added[1] = to_float(bias[column + 1]);
#pragma unroll
            for (i32 r = 0; r < 2 * rows; ++r) {
                const i32 row = first_row + r * 8 + lane / 4;
                const float values[2] = {sums[r / 2][c][r % 2 * 2] + added[0],
                                         sums[r / 2][c][r % 2 * 2 + 1] + added[1]};
                if (row < num_rows) store_pair(out + static_cast<i64>(row) * num_columns, column, num_columns, values);
            }
        }
    }
};

template <class Out, i32 tile_rows, i32 tile_columns, i32 num_stages>
__global__ void __launch_bounds__(num_threads, 2)
gemm(Out* out, const bf16* x, const bf16* weight, const bf16* bias, i32 num_rows, i32 num_columns, i32 depth) {
    extern __shared__ __align__(128) bf16 stages[];
    constexpr i32 x_size = tile_rows * step, stage_size = x_size + tile_columns * step;
    constexpr i32 warps_across = tile_rows / 32, warps_down = num_warps / warps_across;
    constexpr i32 warp_rows = tile_rows / warps_down, warp_columns = tile_columns / warps_across;
    const i32 warp = threadIdx.x / 32;
    const i32 warp_row = warp / warps_across * warp_rows, warp_column = warp % warps_across * warp_columns;
    const i32 first_row = blockIdx.x * tile_rows, first_column = blockIdx.y * tile_columns;
    const i32 num_steps = (depth + step - 1) / step;

    const Copies<tile_rows> x_copies(x, first_row, num_rows, depth);
    const Copies<tile_columns> weight_copies(weight, first_column, num_columns, depth);
    const auto copy_step = [&](i32 number) {
        bf16* const stage = stages + number % num_stages * stage_size;
        if (number < num_steps) {
            x_copies.queue(stage, number * step, depth);
            weight_copies.queue(stage + x_size, number * step, depth);
        }
        ptx::cp_async_commit();  // empty behind the last step: so the newest groups are always the next steps'
    };
    WarpTile<warp_rows / mma_rows, warp_columns / mma_columns> tile;
#pragma unroll
    for (i32 number = 0; number < num_stages - 1; ++number) copy_step(number);
    for (i32 number = 0; number < num_steps; ++number) {
        ptx::cp_async_wait<num_stages - 2>();
        __syncthreads();  // all threads' copies of this step have landed, and no warp reads the stage refilled now
        copy_step(number + num_stages - 1);
        const bf16* const stage = stages + number % num_stages * stage_size;
        tile.multiply(stage, stage + x_size, warp_row, warp_column);
    }
    tile.store(out, bias, first_row + warp_row, first_column + warp_column, num_rows, num_columns);
}
