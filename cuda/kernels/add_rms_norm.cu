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
#include "norm_row.cuh"

template <class T, bool add>
__global__ void __launch_bounds__(1024)
add_rms_norm(T* out, T* residual, const T* x, const T* weight, i32 num_columns, float eps) {
    const i64 row = static_cast<i64>(blockIdx.x) * num_columns;
    norm_row<T, add>(out + row, add ? residual + row : nullptr, weight, num_columns, eps,
                     [&](i32 column) { return load_vector(x + row + column); });
}
