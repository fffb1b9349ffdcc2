// Computes  residual[r] ← residual[r] + x[r]; out[r] = residual[r] / sqrt(mean(residual[r]²) + eps) · weight.
//           x, residual, out: [T, E]; weight: [E]; all of T = bf16 or float. Without `add`: out from x, no residual.
// Owns      A block owns a row; a thread owns up to 4 vectors of 16 bytes of it, kept in registers between the passes.
// Traffic   Reads x, residual and (from L2 after the first row) weight once, writes residual and out once:
//           4·T·E elements in 16-byte accesses. Shared memory: 128 bytes.
// Bound     Latency: 64 rows of 4,096 bf16 are 2 MB, 0.4 µs of HBM; above some thousand rows memory.
// Numerics  The sum is rounded to T before it is normalised, as models were trained. Squares add up in fp32, in an order
//           that depends on E alone: a row's bits do not depend on its batch. Tolerance: 1 ulp of T.
// Requires  E a multiple of 16 bytes and at most 4·1024·16 bytes, rows aligned to 16 bytes, blockDim.x a multiple of 32
//           with 4·blockDim.x vectors covering a row. Checked by add_rms_norm.py.
#include "common.cuh"

constexpr i32 max_vectors = 4;

template <class T, bool add>
__global__ void __launch_bounds__(1024)
add_rms_norm(T* out, T* residual, const T* x, const T* weight, i32 num_columns, float eps) {
    constexpr i32 width = Vector<T>::width;
    const i64 row = static_cast<i64>(blockIdx.x) * num_columns;
    Vector<T> kept[max_vectors];
    float squares = 0.0f;
#pragma unroll
    for (i32 n = 0; n < max_vectors; ++n) {
        const i32 column = (threadIdx.x + n * blockDim.x) * width;
        if (column >= num_columns) continue;
        kept[n] = load_vector(x + row + column);
        if constexpr (add) {
            const Vector<T> before = load_vector(residual + row + column);
#pragma unroll
            for (i32 i = 0; i < width; ++i)
                kept[n].elements[i] = from_float<T>(to_float(before.elements[i]) + to_float(kept[n].elements[i]));
            store_vector(residual + row + column, kept[n]);
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
        store_vector(out + row + column, result);
    }
}
