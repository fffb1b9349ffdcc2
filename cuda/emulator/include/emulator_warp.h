// Barriers and warp operations. Each lane brings a record; the last to arrive computes every lane's result.
#pragma once

namespace emulator {

struct ShuffleCall : WarpCall {
    unsigned long long value;
    unsigned long long result;
    unsigned operand;
};

enum class Shuffle { index, up, exclusive_or };

template <Shuffle kind>
unsigned shuffle_source(unsigned lane, unsigned operand) {
    if (kind == Shuffle::up) return lane < operand ? lane : lane - operand;
    return (kind == Shuffle::index ? operand : lane ^ operand) & 31u;
}

template <Shuffle kind>
void compute_shuffle(WarpCall* const* lanes, unsigned arrived) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((arrived >> lane & 1u) == 0) continue;
        auto* call = static_cast<ShuffleCall*>(lanes[lane]);
        unsigned source = shuffle_source<kind>(lane, call->operand);
        if (lanes[source] == nullptr) fail_lane("warp-misuse", call->operation, source, call->site);
        call->result = static_cast<ShuffleCall*>(lanes[source])->value;
    }
}

template <Shuffle kind, class T>
T shuffle(const char* name, unsigned mask, T value, unsigned operand, Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    ShuffleCall call{{name, mask, site, compute_shuffle<kind>}, 0, 0, operand};
    __builtin_memcpy(&call.value, &value, sizeof(T));
    warp_rendezvous(call);
    __builtin_memcpy(&value, &call.result, sizeof(T));
    return value;
}

struct VoteCall : WarpCall {
    unsigned bits;
    unsigned result;
};

inline void compute_vote(WarpCall* const* lanes, unsigned arrived) {
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (arrived >> lane & 1u) all |= static_cast<VoteCall*>(lanes[lane])->bits;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (arrived >> lane & 1u) static_cast<VoteCall*>(lanes[lane])->result = all;
}

// The bits of all lanes that gave a non-zero predicate.
inline unsigned vote(const char* name, unsigned mask, int predicate, Site site) {
    VoteCall call{{name, mask, site, compute_vote}, predicate != 0 ? 1u << current->lane : 0u, 0};
    warp_rendezvous(call);
    return call.result;
}

}  // namespace emulator

static inline void __syncthreads(emulator::Site site = emulator::here()) {
    emulator::block_barrier(0, 0, true, "__syncthreads", site);
}
static inline int __syncthreads_or(int predicate, emulator::Site site = emulator::here()) {
    return emulator::block_vote(predicate != 0, "__syncthreads_or", site) != 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::here()) {
    emulator::WarpCall call{"__syncwarp", mask, site, nullptr};
    emulator::warp_rendezvous(call);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, emulator::Site site = emulator::here()) {
    auto source = static_cast<unsigned>(lane);
    return emulator::shuffle<emulator::Shuffle::index>("__shfl_sync", mask, value, source, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, emulator::Site site = emulator::here()) {
    return emulator::shuffle<emulator::Shuffle::up>("__shfl_up_sync", mask, value, delta, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, emulator::Site site = emulator::here()) {
    auto bits = static_cast<unsigned>(lanes);
    return emulator::shuffle<emulator::Shuffle::exclusive_or>("__shfl_xor_sync", mask, value, bits, site);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::vote("__ballot_sync", mask, predicate, site);
}
static inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::vote("__any_sync", mask, predicate, site) != 0;
}
