// Of attention.cu: the online softmax of one warp's 16 rows over one split of the keys, for bf16 on tensor cores and for
// float on CUDA cores.
#pragma once
#include "attention_tiles.cuh"

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<i32>(0xff800000u)); }

// Zero for a row that saw nothing. Adding zero takes the sign off a zero, which alone could depend on what was skipped.
__device__ __forceinline__ float inverse_of(float sum) { return sum > 0.0f ? __fdiv_rn(1.0f, sum) : 0.0f; }
__device__ __forceinline__ float normalised(float output, float inverse) { return fmaf(output, inverse, 0.0f); }

// The online softmax of a warp's rows over one split. `slot`s are the rows of which a lane holds accumulators.
template <class T, i32 dim> struct Rows;

template <i32 dim> struct Rows<bf16, dim> {
    using Keys = KeyTile<bf16, dim>;
    static constexpr i32 num_slots = 2, num_columns = dim / 4, num_states = 2, lanes_per_row = 4, weight_bytes = 0;
    static constexpr bool keeps_queries = dim <= 128;  // in registers; else they come from L1 for each step

    i32 lane;
    u32 kept_queries[keeps_queries ? dim / 16 : 1][4];  // fragments of mma's A
    u32 weights[Keys::num_keys / 16][4];
    float o[dim / 8][4];       // fragments of mma's D
    const bf16* queries[2];    // where this lane's elements of rows lane / 4 and + 8 begin; null behind the last row
    float highest[2], sum[2];  // of these rows; the sum is over this lane's keys until `close`
    i32 first[2], last[2];     // keys that they see

    __device__ float& output(i32 slot, i32 n) { return o[n / 2][2 * slot + n % 2]; }
    __device__ i32 column_of(i32 n) const { return n / 2 * 8 + lane % 4 * 2 + n % 2; }
    __device__ bool has_columns() const { return true; }
    __device__ i32 row_of_slot(i32 slot) const { return lane / 4 + 8 * slot; }
    __device__ i32 row_of_state(i32 state) const { return lane / 4 + 8 * state; }
    static __device__ float of_slot(const float (&states)[2], i32 slot) { return states[slot]; }

    __device__ Rows(const WarpRows& rows, const Sizes& sizes, const bf16* qkv, float*, i32 lane_) : lane(lane_) {
        const i64 width = static_cast<i64>(sizes.num_heads + 2 * sizes.num_kv_heads) * dim;
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
            const i32 row = row_of_state(i);
            const bool is_row = row < rows.num_rows;
            last[i] = is_row ? rows.position(row) : -1;
            first[i] = sizes.first_visible(last[i]);
            queries[i] = is_row ? qkv + rows.offset(row, width, dim) + lane % 4 * 2 : nullptr;
        }
        if constexpr (keeps_queries)
#pragma unroll
            for (i32 k = 0; k < dim / 16; ++k) load_queries(kept_queries[k], k);
    }

    __device__ void load_queries(u32 (&fragment)[4], i32 k) const {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            const bf16* const row = queries[i % 2];
            fragment[i] = row == nullptr ? 0 : *reinterpret_cast<const u32*>(row + 16 * k + i / 2 * 8);
        }
    }

    __device__ void reset() {
#pragma unroll
        for (i32 n = 0; n < dim / 8; ++n)
#pragma unroll
            for (i32 i = 0; i < 4; ++i) o[n][i] = 0.0f;
        highest[0] = highest[1] = minus_infinity();
        sum[0] = sum[1] = 0.0f;
    }

    // Turns the step's keys into weights and makes (m, l, o) ready for their values. `all_visible`: to every row, so that
    // nothing needs to be hidden; what becomes of rows behind the last is nobody's concern.
    __device__ void weigh(const unsigned char* keys, i32 first_key, bool all_visible, const Sizes& sizes) {
        float scores[Keys::num_keys / 8][4] = {};
#pragma unroll(keeps_queries ? dim / 16 : 2)
        for (i32 k = 0; k < dim / 16; ++k) {
            u32 loaded[4];
            if constexpr (!keeps_queries) load_queries(loaded, k);
            const u32(&a)[4] = keeps_queries ? kept_queries[keeps_queries ? k : 0] : loaded;
#pragma unroll
            for (i32 n = 0; n < Keys::num_keys / 16; ++n) {
                u32 b[4];
                ptx::ldmatrix_x4(b, keys + Keys::place(16 * n + lane / 16 * 8 + lane % 8, lane / 8 % 2, 2 * k));
                const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                ptx::mma_m16n8k16_bf16(scores[2 * n], a, low);
                ptx::mma_m16n8k16_bf16(scores[2 * n + 1], a, high);
            }
        }
        float largest[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
        for (i32 n = 0; n < Keys::num_keys / 8; ++n)
#pragma unroll
            for (i32 i = 0; i < 4; ++i) {
                float score = scores[n][i];
                if (sizes.cap_scale > 0.0f) score = tanhf(__fmul_rn(score, sizes.cap_scale));
                const i32 key = first_key + 8 * n + lane % 4 * 2 + i % 2;
                if (!all_visible && (key < first[i / 2] || key > last[i / 2])) score = minus_infinity();
                scores[n][i] = score;
                largest[i / 2] = fmaxf(largest[i / 2], score);
            }
        float kept[2], base[2];
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
            largest[i] = fmaxf(largest[i], __shfl_xor_sync(full_warp, largest[i], 1));
            largest[i] = fmaxf(largest[i], __shfl_xor_sync(full_warp, largest[i], 2));
            const float now = fmaxf(highest[i], __fmul_rn(largest[i], sizes.scale));
            base[i] = now == minus_infinity() ? 0.0f : now;  // −∞ − −∞ is not a number
            kept[i] = exp2f(__fsub_rn(highest[i], base[i]));
            highest[i] = now;
        }
        float step_sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (i32 n = 0; n < Keys::num_keys / 8; ++n) {
#pragma unroll
            for (i32 i = 0; i < 4; ++i) {
                scores[n][i] = exp2f(fmaf(scores[n][i], sizes.scale, -base[i / 2]));
                step_sum[i / 2] = __fadd_rn(step_sum[i / 2], scores[n][i]);
            }
#pragma unroll
            for (i32 i = 0; i < 2; ++i) weights[n / 2][n % 2 * 2 + i] = packed(scores[n][2 * i], scores[n][2 * i + 1]);
        }
        sum[0] = fmaf(sum[0], kept[0], step_sum[0]);
        sum[1] = fmaf(sum[1], kept[1], step_sum[1]);
        if (__any_sync(full_warp, kept[0] != 1.0f || kept[1] != 1.0f))
#pragma unroll
            for (i32 n = 0; n < dim / 8; ++n)
#pragma unroll
                for (i32 i = 0; i < 4; ++i) o[n][i] = __fmul_rn(o[n][i], kept[i / 2]);
    }

    __device__ void add(const unsigned char* values) {
#pragma unroll
        for (i32 k = 0; k < Keys::num_keys / 16; ++k)
#pragma unroll
            for (i32 n = 0; n < dim / 16; ++n) {
                u32 b[4];
                ptx::ldmatrix_x4_trans(b, values + Keys::place(16 * k + lane % 16, lane / 16, 2 * n));
                const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                ptx::mma_m16n8k16_bf16(o[2 * n], weights[k], low);
                ptx::mma_m16n8k16_bf16(o[2 * n + 1], weights[k], high);
            }
    }

    __device__ void close() {
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
            sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(full_warp, sum[i], 1));
            sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(full_warp, sum[i], 2));
        }
    }

    __device__ void store(bf16* row, i32 slot, float inverse) {
#pragma unroll
        for (i32 n = 0; n < dim / 8; ++n)
            *reinterpret_cast<u32*>(row + 8 * n + lane % 4 * 2) =
                packed(normalised(o[n][2 * slot], inverse), normalised(o[n][2 * slot + 1], inverse));
    }

    static __device__ __forceinline__ u32 packed(float low, float high) {
        return static_cast<u32>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
               static_cast<u32>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
    }
};

// CUDA cores. A lane scores one key (with num_parts − 1 others) for all rows, holds the state of row lane / 2, and
// accumulates every 32nd column of every row. Of 16 columns the upper lanes accumulate what the lower ones do, for nobody.
template <i32 dim> struct Rows<float, dim> {
    using Keys = KeyTile<float, dim>;
    static constexpr i32 num_slots = max_rows, num_columns = (dim + 31) / 32, num_states = 1, lanes_per_row = 2;
    static constexpr i32 num_parts = 32 / Keys::num_keys, weight_bytes = max_rows * Keys::num_keys * 4;

    i32 lane, num_rows;
    const float* qkv;
    i64 q_offset;      // of row lane % 16
    float* weights;    // shared, [rows, keys]
    float o[max_rows][num_columns];
    float highest[1], sum[1];
    i32 first, last;

    __device__ float& output(i32 slot, i32 n) { return o[slot][n]; }
    __device__ i32 column_of(i32 n) const { return 32 * n + lane; }
    __device__ bool has_columns() const { return dim % 32 == 0 || lane < dim; }
    __device__ i32 row_of_slot(i32 slot) const { return slot; }
    __device__ i32 row_of_state(i32) const { return lane / 2; }
    static __device__ float of_slot(const float (&states)[1], i32 slot) {
        return __shfl_sync(full_warp, states[0], 2 * slot);
    }

    __device__ Rows(const WarpRows& rows, const Sizes& sizes, const float* qkv_, float* weights_, i32 lane_)
        : lane(lane_), num_rows(rows.num_rows), qkv(qkv_), weights(weights_) {
        const i64 width = static_cast<i64>(sizes.num_heads + 2 * sizes.num_kv_heads) * dim;
        q_offset = lane % max_rows < num_rows ? rows.offset(lane % max_rows, width, dim) : 0;
        last = lane / 2 < num_rows ? rows.position(lane / 2) : -1;
        first = sizes.first_visible(last);
    }

    __device__ void reset() {
#pragma unroll
        for (i32 row = 0; row < max_rows; ++row)
#pragma unroll
            for (i32 n = 0; n < num_columns; ++n) o[row][n] = 0.0f;
        highest[0] = minus_infinity();
        sum[0] = 0.0f;
    }

    __device__ void weigh(const unsigned char* keys, i32 first_key, bool, const Sizes& sizes) {
        const i32 own_key = lane % Keys::num_keys, part = lane / Keys::num_keys;
#pragma unroll 1
        for (i32 row = 0; row < num_rows; ++row) {
            const float* const query = qkv + __shfl_sync(full_warp, q_offset, row);
            float score = 0.0f;
#pragma unroll 4
            for (i32 vector = part; vector < Keys::row_vectors; vector += num_parts) {
                const Vector<float> key =
                    load_vector(reinterpret_cast<const float*>(keys + Keys::place(own_key, vector)));
                const Vector<float> factors = load_vector(query + 4 * vector);
#pragma unroll
                for (i32 i = 0; i < 4; ++i) score = fmaf(key.elements[i], factors.elements[i], score);
            }
#pragma unroll
            for (i32 distance = Keys::num_keys; distance < 32; distance *= 2)
                score = __fadd_rn(score, __shfl_xor_sync(full_warp, score, distance));
            if (part == 0) weights[row * Keys::num_keys + own_key] = score;
        }
        __syncwarp();  // the lanes of a row see the scores of all lanes

        float* const own = weights + lane / 2 * Keys::num_keys;
        const bool is_row = lane / 2 < num_rows;
        float scores[Keys::num_keys / 2];
        float largest = minus_infinity();
#pragma unroll
        for (i32 i = 0; i < Keys::num_keys / 2; ++i) {
            const i32 key = first_key + 2 * i + lane % 2;
            float score = minus_infinity();
            if (is_row && key >= first && key <= last) score = own[2 * i + lane % 2];
            if (sizes.cap_scale > 0.0f && score > minus_infinity()) score = tanhf(__fmul_rn(score, sizes.cap_scale));
            scores[i] = score;
            largest = fmaxf(largest, score);
        }
        largest = fmaxf(largest, __shfl_xor_sync(full_warp, largest, 1));
        const float now = fmaxf(highest[0], __fmul_rn(largest, sizes.scale));
        const float base = now == minus_infinity() ? 0.0f : now;
        const float kept[1] = {exp2f(__fsub_rn(highest[0], base))};
        highest[0] = now;
        float step_sum = 0.0f;
#pragma unroll
        for (i32 i = 0; i < Keys::num_keys / 2; ++i) {
            const float weight = exp2f(fmaf(scores[i], sizes.scale, -base));
            step_sum = __fadd_rn(step_sum, weight);
            own[2 * i + lane % 2] = weight;
        }
        sum[0] = fmaf(sum[0], kept[0], step_sum);
        if (__any_sync(full_warp, kept[0] != 1.0f))
#pragma unroll
            for (i32 row = 0; row < max_rows; ++row) {
                const float factor = of_slot(kept, row);
#pragma unroll
                for (i32 n = 0; n < num_columns; ++n) o[row][n] = __fmul_rn(o[row][n], factor);
            }
        __syncwarp();  // every lane sees the weights of all rows
    }

    __device__ void add(const unsigned char* values) {
#pragma unroll 1
        for (i32 key = 0; key < Keys::num_keys; key += 4) {
            float value[4][num_columns];
#pragma unroll
            for (i32 i = 0; i < 4; ++i)
#pragma unroll
                for (i32 n = 0; n < num_columns; ++n) {
                    value[i][n] =
                        reinterpret_cast<const float*>(values + Keys::place(key + i, lane % dim / 4, 8 * n))[lane % 4];
                }
#pragma unroll
            for (i32 row = 0; row < max_rows; ++row) {
                if (row >= num_rows) break;
                const Vector<float> weight = load_vector(weights + row * Keys::num_keys + key);
#pragma unroll
                for (i32 i = 0; i < 4; ++i)
#pragma unroll
                    for (i32 n = 0; n < num_columns; ++n) o[row][n] = fmaf(weight.elements[i], value[i][n], o[row][n]);
            }
        }
    }

    __device__ void close() { sum[0] = __fadd_rn(sum[0], __shfl_xor_sync(full_warp, sum[0], 1)); }

    __device__ void store(float* row, i32 slot, float inverse) {
        if (!has_columns()) return;
#pragma unroll
        for (i32 n = 0; n < num_columns; ++n) row[32 * n + lane] = normalised(o[slot][n], inverse);
    }
};
