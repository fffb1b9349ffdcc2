// The twins of ptx.cuh: what each instruction does, lane by lane, with what the manual forbids reported.
#pragma once
#include "cuda_bf16.h"

namespace emulator {

struct MmaCall : WarpCall {
    float* d;
    const unsigned* a;
    const unsigned* b;
    float result[4];
};

inline float bf16_value(unsigned bits) { return __bfloat162float({static_cast<unsigned short>(bits)}); }

inline void need_all_lanes(const WarpCall* call, unsigned arrived) {
    if (arrived != 0xffffffffu) fail("warp-misuse", "a .aligned instruction needs all 32 lanes", call->site);
}

// Exact products, summed in double and rounded once: the tensor core's own rounding is not modelled.
EMULATOR_UNWATCHED inline void compute_mma(WarpCall* const* lanes, unsigned arrived) {
    need_all_lanes(lanes[__builtin_ctz(arrived)], arrived);
    double a[16][16], b[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto* call = static_cast<const MmaCall*>(lanes[lane]);
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 8; ++i)
            a[group + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = bf16_value(call->a[i / 2] >> i % 2 * 16 & 0xffffu);
        for (unsigned i = 0; i < 4; ++i)
            b[pair + i % 2 + i / 2 * 8][group] = bf16_value(call->b[i / 2] >> i % 2 * 16 & 0xffffu);
    }
    double sums[16][8] = {};
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned k = 0; k < 16; ++k)
            for (unsigned column = 0; column < 8; ++column)
                sums[row][column] += a[row][k] * b[k][column];
    for (unsigned lane = 0; lane < 32; ++lane) {
        auto* call = static_cast<MmaCall*>(lanes[lane]);
        for (unsigned i = 0; i < 4; ++i)
            call->result[i] = static_cast<float>(sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] + call->d[i]);
    }
}

struct MatrixCall : WarpCall {
    const unsigned char* row;
    unsigned* result;
};

// What a lane receives is what counts as read by it: it must have been made visible to that lane.
EMULATOR_UNWATCHED inline unsigned matrix_element(const MatrixCall* owner, unsigned column, unsigned lane,
                                                  Site site) {
    unsigned short bits;
    check_access(lane, owner->row + 2 * column, 2, false, site);
    __builtin_memcpy(&bits, owner->row + 2 * column, 2);
    return bits;
}

template <bool transposed>
EMULATOR_UNWATCHED void compute_ldmatrix(WarpCall* const* lanes, unsigned arrived) {
    need_all_lanes(lanes[__builtin_ctz(arrived)], arrived);
    const auto call_of = [&](unsigned lane) { return static_cast<MatrixCall*>(lanes[lane]); };
    for (unsigned lane = 0; lane < 32; ++lane)
        if (reinterpret_cast<unsigned long>(call_of(lane)->row) % 16 != 0)
            fail("misaligned", "a row of ldmatrix is not aligned to 16 bytes", lanes[lane]->site);
    for (unsigned lane = 0; lane < 32; ++lane)
        for (unsigned matrix = 0; matrix < 4; ++matrix) {
            unsigned bits = 0;
            for (unsigned i = 0; i < 2; ++i) {
                unsigned along = lane % 4 * 2 + i, across = lane / 4;
                unsigned row = transposed ? along : across, column = transposed ? across : along;
                bits |= matrix_element(call_of(matrix * 8 + row), column, lane, lanes[lane]->site) << 16 * i;
            }
            call_of(lane)->result[matrix] = bits;
        }
}

// `registers` is filled after the meeting: a lane's registers are written by nobody but itself.
template <bool transposed>
void ldmatrix(const char* name, unsigned (&registers)[4], const void* row, Site site) {
    unsigned result[4];
    const auto* bytes = static_cast<const unsigned char*>(row);
    MatrixCall call{{name, 0xffffffffu, site, compute_ldmatrix<transposed>}, bytes, result};
    warp_rendezvous(call);
    for (unsigned i = 0; i < 4; ++i) registers[i] = result[i];
}

}  // namespace emulator

namespace ptx {

using emulator::here;
using emulator::Site;

inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site site = here()) {
    emulator::MmaCall call{{"mma_m16n8k16_bf16", 0xffffffffu, site, emulator::compute_mma}, d, a, b, {}};
    emulator::warp_rendezvous(call);
    for (int i = 0; i < 4; ++i) d[i] = call.result[i];
}
inline void ldmatrix_x4(unsigned (&r)[4], const void* row, Site site = here()) {
    emulator::ldmatrix<false>("ldmatrix_x4", r, row, site);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, Site site = here()) {
    emulator::ldmatrix<true>("ldmatrix_x4_trans", r, row, site);
}

inline void cp_async_16(void* shared, const void* global, unsigned source_bytes = 16, Site site = here()) {
    emulator::async_copy(shared, global, source_bytes, site);
}
inline void cp_async_commit() { emulator::async_commit(); }
template <int pending>
void cp_async_wait() { emulator::async_wait(pending); }

EMULATOR_UNWATCHED inline void store_release(unsigned* flag, unsigned value, bool system, Site site) {
    emulator::check_atomic(flag, 4, emulator::MemoryOrder::release, system, value, site);
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
EMULATOR_UNWATCHED inline unsigned load_acquire(const char* name, const unsigned* flag, bool system, Site site) {
    emulator::spin_point(name, site, flag);
    unsigned value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
    emulator::check_atomic(flag, 4, emulator::MemoryOrder::acquire, system, value, site);
    return value;
}
inline void store_release_system(unsigned* flag, unsigned value, Site site = here()) {
    store_release(flag, value, true, site);
}
inline void store_release_gpu(unsigned* flag, unsigned value, Site site = here()) {
    store_release(flag, value, false, site);
}
inline unsigned load_acquire_system(const unsigned* flag, Site site = here()) {
    return load_acquire("load_acquire_system", flag, true, site);
}
inline unsigned load_acquire_gpu(const unsigned* flag, Site site = here()) {
    return load_acquire("load_acquire_gpu", flag, false, site);
}

inline void barrier_sync(unsigned id, unsigned threads, Site site = here()) {
    emulator::block_barrier(id, threads, true, "barrier_sync", site);
}
inline void barrier_arrive(unsigned id, unsigned threads, Site site = here()) {
    emulator::block_barrier(id, threads, false, "barrier_arrive", site);
}

inline unsigned long long global_timer_ns() { return emulator::nanoseconds(); }
[[noreturn]] inline void trap(Site site = here()) { emulator::fail("trap", "ptx::trap", site); }

}  // namespace ptx
