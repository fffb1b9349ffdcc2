// Of attention.cu: how the results of splits become a row's output.
#pragma once
#include "attention_rows.cuh"

// How the result of one more split joins the splits before it. Both kernels merge with this, so their bits agree; a
// split of which a row saw nothing leaves that row as it is.
struct Merge {
    float highest, kept, added;

    __device__ Merge(float total_highest, float split_highest) {
        highest = fmaxf(total_highest, split_highest);
        const bool nothing = split_highest == minus_infinity();
        kept = nothing ? 1.0f : exp2f(__fsub_rn(total_highest, highest));
        added = nothing ? 0.0f : exp2f(__fsub_rn(split_highest, highest));
    }
};
__device__ __forceinline__ float merged(float total, float kept, float split, float added) {
    return fmaf(total, kept, __fmul_rn(split, added));
}

// What the splits so far came to: outputs in shared memory, each lane its own, the row states in registers.
template <class T, i32 dim> struct Total {
    using R = Rows<T, dim>;
    static constexpr i32 num_floats = R::num_slots * R::num_columns * 32;

    float* outputs;  // [rows of a lane, columns of a lane, 32]
    float highest[R::num_states], sum[R::num_states];

    __device__ void clear() {
#pragma unroll
        for (i32 i = 0; i < R::num_states; ++i) {
            highest[i] = minus_infinity();
            sum[i] = 0.0f;
        }
    }

    // Merges a split into what came before it; the result is left in `rows` too.
    __device__ void merge(R& rows, bool is_first, bool is_last) {
        float kept_states[R::num_states], added_states[R::num_states];
#pragma unroll
        for (i32 i = 0; i < R::num_states; ++i) {
            const Merge merge(highest[i], rows.highest[i]);
            highest[i] = merge.highest;
            sum[i] = merged(sum[i], merge.kept, rows.sum[i], merge.added);
            kept_states[i] = merge.kept;
            added_states[i] = merge.added;
        }
#pragma unroll
        for (i32 slot = 0; slot < R::num_slots; ++slot) {
            const float kept = R::of_slot(kept_states, slot), added = R::of_slot(added_states, slot);
#pragma unroll
            for (i32 n = 0; n < R::num_columns; ++n) {
                float& passed = outputs[(slot * R::num_columns + n) * 32 + rows.lane];
                rows.output(slot, n) = merged(is_first ? 0.0f : passed, kept, rows.output(slot, n), added);
                if (!is_last) passed = rows.output(slot, n);
            }
        }
    }

    // The states on their way to the next warp.
    __device__ void put_states(float* to, i32 lane) const {
#pragma unroll
        for (i32 i = 0; i < R::num_states; ++i) {
            to[2 * i * 32 + lane] = highest[i];
            to[(2 * i + 1) * 32 + lane] = sum[i];
        }
    }
    __device__ void take_states(const float* from, i32 lane) {
#pragma unroll
        for (i32 i = 0; i < R::num_states; ++i) {
            highest[i] = from[2 * i * 32 + lane];
            sum[i] = from[(2 * i + 1) * 32 + lane];
        }
    }
};

template <class T, i32 dim>
__device__ void write_out(T* out, Rows<T, dim>& rows, const Total<T, dim>& total, const WarpRows& own, i32 num_heads) {
    using R = Rows<T, dim>;
    float inverses[R::num_states];
#pragma unroll
    for (i32 i = 0; i < R::num_states; ++i) inverses[i] = inverse_of(total.sum[i]);
#pragma unroll
    for (i32 slot = 0; slot < R::num_slots; ++slot) {
        const i32 row = rows.row_of_slot(slot);
        const float inverse = R::of_slot(inverses, slot);
        if (row < own.num_rows)
            rows.store(out + own.offset(row, static_cast<i64>(num_heads) * dim, dim), slot, inverse);
    }
}

// Row r of the split goes to row `first + r` of the partial results [rows, K, …].
template <class T, i32 dim>
__device__ void write_partial(float* outputs, float* states, Rows<T, dim>& rows, i32 num_rows, i64 first, i32 kv_head,
                              i32 num_kv_heads) {
    using R = Rows<T, dim>;
#pragma unroll
    for (i32 slot = 0; slot < R::num_slots; ++slot) {
        const i32 row = rows.row_of_slot(slot);
        if (row >= num_rows || !rows.has_columns()) continue;
        float* const to = outputs + ((first + row) * num_kv_heads + kv_head) * dim;
#pragma unroll
        for (i32 n = 0; n < R::num_columns; ++n) to[rows.column_of(n)] = rows.output(slot, n);
    }
#pragma unroll
    for (i32 i = 0; i < R::num_states; ++i) {
        const i32 row = rows.row_of_state(i);
        if (row >= num_rows || rows.lane % R::lanes_per_row != 0) continue;
        float* const to = states + ((first + row) * num_kv_heads + kv_head) * 2;
        to[0] = rows.highest[i];
        to[1] = rows.sum[i];
    }
}
