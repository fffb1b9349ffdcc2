// What kernels share: fixed-width types (NVRTC has no <cstdint>), 16-byte vectors, sums over warps and blocks.
#pragma once
#include "cuda_bf16.h"

using i32 = int;
using u32 = unsigned;
using i64 = long long;
using u64 = unsigned long long;
using bf16 = __nv_bfloat16;

constexpr u32 full_warp = 0xffffffffu;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

// Rounds to nearest, ties to even.
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

// What one thread moves at a time: 16 bytes, one transaction.
template <class T> struct __align__(16) Vector {
    static constexpr i32 width = 16 / sizeof(T);
    T elements[width];
};

template <class T> __device__ __forceinline__ Vector<T> load_vector(const T* address) {
    return *reinterpret_cast<const Vector<T>*>(address);
}
template <class T> __device__ __forceinline__ void store_vector(T* address, const Vector<T>& vector) {
    *reinterpret_cast<Vector<T>*>(address) = vector;
}

// Every lane gets the sum over the warp, added in the same order on every run.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (i32 distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(full_warp, value, distance);
    return value;
}

// Every thread gets the sum over the block, whose size is a multiple of 32. A second call needs a barrier before it,
// or its partial sums overwrite those that slow warps still read.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float partial[32];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    value = warp_sum(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();  // no warp reads `partial` before every warp has written its own
    return warp_sum(lane < num_warps ? partial[lane] : 0.0f);
}
