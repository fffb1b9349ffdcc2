"""Small kernels with properties that are known beforehand."""

EVERY_SCALAR = """
extern "C" __global__ void every_scalar(float* out, const unsigned* in, int i, unsigned u, float f, long long l,
                                        unsigned long long m, bool b, double d) {
    if (b) out[0] = in[i] + u + f + l + m + d;
}
"""
EVERY_SCALARS_TYPES = "i8 i8 i4 i4 f4 i8 i8 i1 f8".split()
STRUCTURE = """
struct Several { float* pointers[8]; int count; };
extern "C" __global__ void structure(int i, Several several, float f) { several.pointers[i][several.count] = f; }
"""
TEMPLATE = """
template <class T> __global__ void __launch_bounds__(64, 2) scale(T* x, T factor) {
    __shared__ T kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = kept[63 - threadIdx.x] * factor;
}
"""
# 1024 threads share 65,536 registers: 64 each, too few for 128 values that are all needed at the end.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) spilling(float* x, int stride) {
    float values[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) values[i] = x[i * stride];
#pragma unroll
    for (int i = 0; i < 128; ++i) x[i * stride + 1] = values[i] * values[127 - i] + values[(i * 7) % 128];
}
"""
