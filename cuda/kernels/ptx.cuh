// All PTX of the kernels, one device function an instruction. In the emulator each has a twin of the same name
// (emulator_ptx.h). What each does is in the PTX ISA manual under the instruction's name.
#pragma once

#ifdef CUDA_EMULATOR
#include "emulator_ptx.h"
#else

namespace ptx {

// d += a·b for one warp: a 16×16 (row), b 16×8 (column), d 16×8 in fp32. Fragments: "Matrix Fragments for
// mma.m16n8k16 with floating point type".
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four 8×8 matrices of 16-bit elements: lane i gives the address of row i%8 of matrix i/8. Lane l receives elements
// 2·(l%4) and +1 of row l/4, or of column l/4 when transposed.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// Copies `source_bytes` from global to shared memory and fills the rest of the 16 with zeros.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, unsigned source_bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(source_bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's committed groups are still in flight.
template <int pending>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory"); }

// Flags between devices (system scope) and between blocks (gpu scope).
__device__ __forceinline__ void store_release_system(unsigned* flag, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_acquire_system(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
__device__ __forceinline__ void store_release_gpu(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_acquire_gpu(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// Barrier `id` (1-15; 0 is __syncthreads) for `threads`, a multiple of 32.
__device__ __forceinline__ void barrier_sync(unsigned id, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned id, unsigned threads) {
    asm volatile("barrier.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// Nanoseconds of a clock that the whole device shares; it moves in steps of about a microsecond. For deadlines.
__device__ __forceinline__ unsigned long long global_timer_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    return now;
}
// Ends the launch with an error, and the process's use of the device. What the host shall still read was stored before a
// __threadfence_system().
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

}  // namespace ptx

#endif
