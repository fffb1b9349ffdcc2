// Included before every .cu: the names nvcc and NVRTC know without a header.
#pragma once
#include "emulator_abi.h"

#define CUDA_EMULATOR 1  // ptx.cuh then takes its twins from emulator_ptx.h

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local  // a block stays on one OS thread
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::emulator::current->thread_index)
#define blockIdx (::emulator::current->block_index)
#define blockDim (::emulator::current->block_dim)
#define gridDim (::emulator::current->grid_dim)

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emulator {

// The loader puts this first in every kernel with `__launch_bounds__`: CUDA refuses such a launch.
inline void check_launch_bounds(unsigned max_threads, int = 0, int = 0) {
    if (current->block_dim.x * current->block_dim.y * current->block_dim.z > max_threads)
        fail("launch-bounds", "the block has more threads than __launch_bounds__ allows", {nullptr, 0});
}

}  // namespace emulator

#include "emulator_atomics.h"
#include "emulator_math.h"
#include "emulator_warp.h"
