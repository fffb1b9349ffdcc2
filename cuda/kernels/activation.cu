// Computes  out[t] = gate · sigmoid(s) · up of gate_up[t] = [gate; up]: s = gate for silu; for gelu (tanh form)
//           s = 2·√(2/π)·(gate + 0.044715·gate³), as ½·(1 + tanh(u)) = sigmoid(2u). out: [T, F]; gate_up: [T, 2F].
// Owns      A block owns up to 256 vectors of one row, a thread one vector of 16 bytes.
// Traffic   Reads 2·T·F elements, writes T·F, in 16-byte accesses. No shared memory.
// Bound     Memory, in a decode step latency: 64 rows of Llama-8B (F = 14,336) are 5.5 MB, 1.2 µs of HBM. At most 32
//           registers: 8 blocks fill a multiprocessor, two loads in flight a thread.
// Numerics  fp32, one rounding. bf16 takes the fast exp and quotient, whose error vanishes in its rounding. An
//           element's bits depend on nothing else. Tolerance: 1 ulp of bf16; 4·10⁻⁶ of float, for the rounding of s
//           grows through exp.
// Requires  F a multiple of 16 bytes, rows aligned to 16 bytes. Checked by activation.py.
#include "common.cuh"

struct Silu {
    static __device__ __forceinline__ float argument(float gate) { return gate; }
};
struct Gelu {
    static __device__ __forceinline__ float argument(float gate) {
        constexpr float slope = 1.5957691216057308f;  // 2·√(2/π)
        return slope * gate * fmaf(0.044715f * gate, gate, 1.0f);
    }
};

__device__ __forceinline__ float times_sigmoid(float x, float s, float /* of an element */) {
    return x / (1.0f + expf(-s));
}
__device__ __forceinline__ float times_sigmoid(float x, float s, bf16 /* of an element */) {
    return __fdividef(x, 1.0f + __expf(-s));
}

template <class T, class Kind>
__global__ void __launch_bounds__(256)
gated_activation(T* out, const T* gate_up, i32 num_columns) {
    constexpr i32 width = Vector<T>::width;
    const i32 column = (blockIdx.y * blockDim.x + threadIdx.x) * width;
    if (column >= num_columns) return;
    const i64 row = blockIdx.x;
    const Vector<T> gate = load_vector(gate_up + row * 2 * num_columns + column);
    const Vector<T> up = load_vector(gate_up + (row * 2 + 1) * num_columns + column);
    Vector<T> result;
#pragma unroll
    for (i32 i = 0; i < width; ++i) {
        const float x = to_float(gate.elements[i]);
        const float gated = times_sigmoid(x, Kind::argument(x), gate.elements[i]);
        result.elements[i] = from_float<T>(gated * to_float(up.elements[i]));
    }
    store_vector(out + row * num_columns + column, result);
}
