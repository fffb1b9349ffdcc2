// RMSNorm of one row by one block, with the residual add before it: what `add_rms_norm` and `all_reduce` share, so that
// both give the same bits. `out`, `residual` and `weight` point to the row's first column.
#pragma once
#include "common.cuh"

constexpr i32 max_vectors = 4;

// residual += delta, rounded to T; out = residual / sqrt(mean(residual²) + eps) · weight. Without `add`: out from delta,
// no residual. `delta` gives the 16 bytes at a column. A thread keeps up to 4 of them in registers between the passes.
// A second call needs a barrier before it, as `block_sum` does.
template <class T, bool add, class Delta>
__device__ __forceinline__ void norm_row(T* out, T* residual, const T* weight, i32 num_columns, float eps,
                                         Delta delta) {
    constexpr i32 width = Vector<T>::width;
    Vector<T> kept[max_vectors];
    float squares = 0.0f;
#pragma unroll
    for (i32 n = 0; n < max_vectors; ++n) {
        const i32 column = (threadIdx.x + n * blockDim.x) * width;
        if (column >= num_columns) continue;
        kept[n] = delta(column);
        if constexpr (add) {
            const Vector<T> before = load_vector(residual + column);
#pragma unroll
            for (i32 i = 0; i < width; ++i)
                kept[n].elements[i] = from_float<T>(to_float(before.elements[i]) + to_float(kept[n].elements[i]));
            store_vector(residual + column, kept[n]);
        }
#pragma unroll
        for (i32 i = 0; i < width; ++i) {
            const float value = to_float(kept[n].elements[i]);
            squares = fmaf(value, value, squares);
        }
    }
    const float scale = rsqrtf(block_sum(squares) / static_cast<float>(num_columns) + eps);
#pragma unroll
    for (i32 n = 0; n < max_vectors; ++n) {
        const i32 column = (threadIdx.x + n * blockDim.x) * width;
        if (column >= num_columns) continue;
        const Vector<T> factors = load_vector(weight + column);
        Vector<T> result;
#pragma unroll
        for (i32 i = 0; i < width; ++i)
            result.elements[i] = from_float<T>(to_float(kept[n].elements[i]) * scale * to_float(factors.elements[i]));
        store_vector(out + column, result);
    }
}
