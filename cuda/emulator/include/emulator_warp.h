// Barriers and warp operations. Each lane brings a record; the last to arrive computes every lane's result.
#pragma once

namespace emulator {

constexpr const char* sync_name = "__syncthreads";

struct ShuffleCall : WarpCall {
    unsigned long long value;
    unsigned long long result;
    unsigned operand;
    unsigned width;
};

enum class Shuffle { index, up, down, exclusive_or };

template <Shuffle kind>
unsigned shuffle_source(unsigned lane, unsigned operand, unsigned width) {
    unsigned first = lane & ~(width - 1u), last = first + width - 1u;
    unsigned source = 0;
    if (kind == Shuffle::index) source = first + (operand & (width - 1u));
    if (kind == Shuffle::up) source = lane < first + operand ? lane : lane - operand;
    if (kind == Shuffle::down) source = lane + operand > last ? lane : lane + operand;
    if (kind == Shuffle::exclusive_or) source = (lane ^ operand) > last ? lane : lane ^ operand;
    return source;
}

template <Shuffle kind>
void compute_shuffle(WarpCall* const* lanes, unsigned arrived) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((arrived >> lane & 1u) == 0) continue;
        auto* call = static_cast<ShuffleCall*>(lanes[lane]);
        unsigned source = shuffle_source<kind>(lane, call->operand, call->width);
        if (lanes[source & 31u] == nullptr) fail_lane("warp-misuse", call->operation, source & 31u, call->site);
        call->result = static_cast<ShuffleCall*>(lanes[source & 31u])->value;
    }
}

template <Shuffle kind, class T>
T shuffle(const char* name, unsigned mask, T value, unsigned operand, int width, Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    ShuffleCall call{{name, mask, site, compute_shuffle<kind>}, 0, 0, operand, static_cast<unsigned>(width)};
    __builtin_memcpy(&call.value, &value, sizeof(T));
    warp_rendezvous(call);
    __builtin_memcpy(&value, &call.result, sizeof(T));
    return value;
}

template <class T>
struct FoldCall : WarpCall {
    T value;
    T result;
};

template <class T, class Operation>
void compute_fold(WarpCall* const* lanes, unsigned arrived) {
    T total{};
    bool first = true;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((arrived >> lane & 1u) == 0) continue;
        T value = static_cast<FoldCall<T>*>(lanes[lane])->value;
        total = first ? value : Operation::apply(total, value);
        first = false;
    }
    for (unsigned lane = 0; lane < 32; ++lane)
        if (arrived >> lane & 1u) static_cast<FoldCall<T>*>(lanes[lane])->result = total;
}

template <class Operation, class T>
T fold(const char* name, unsigned mask, T value, Site site) {
    FoldCall<T> call{{name, mask, site, compute_fold<T, Operation>}, value, value};
    warp_rendezvous(call);
    return call.result;
}

struct Add { template <class T> static T apply(T a, T b) { return a + b; } };
struct Min { template <class T> static T apply(T a, T b) { return b < a ? b : a; } };
struct Max { template <class T> static T apply(T a, T b) { return a < b ? b : a; } };
struct And { template <class T> static T apply(T a, T b) { return a & b; } };
struct Or { template <class T> static T apply(T a, T b) { return a | b; } };
struct Xor { template <class T> static T apply(T a, T b) { return a ^ b; } };

struct MatchCall : WarpCall {
    unsigned long long value;
    unsigned result;
};

inline void compute_match(WarpCall* const* lanes, unsigned arrived) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((arrived >> lane & 1u) == 0) continue;
        auto* call = static_cast<MatchCall*>(lanes[lane]);
        call->result = 0;
        for (unsigned other = 0; other < 32; ++other)
            if ((arrived >> other & 1u) && static_cast<MatchCall*>(lanes[other])->value == call->value)
                call->result |= 1u << other;
    }
}

}  // namespace emulator

static inline void __syncthreads(emulator::Site site = emulator::here()) {
    emulator::block_barrier(0, 0, true, emulator::sync_name, site);
}
static inline int __syncthreads_count(int predicate, emulator::Site site = emulator::here()) {
    return static_cast<int>(emulator::block_vote(predicate != 0, "__syncthreads_count", site));
}
static inline int __syncthreads_or(int predicate, emulator::Site site = emulator::here()) {
    return emulator::block_vote(predicate != 0, "__syncthreads_or", site) != 0;
}
static inline int __syncthreads_and(int predicate, emulator::Site site = emulator::here()) {
    return emulator::block_vote(predicate == 0, "__syncthreads_and", site) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::here()) {
    emulator::WarpCall call{"__syncwarp", mask, site, nullptr};
    emulator::warp_rendezvous(call);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, emulator::Site site = emulator::here()) {
    auto source = static_cast<unsigned>(lane);
    return emulator::shuffle<emulator::Shuffle::index>("__shfl_sync", mask, value, source, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Site site = emulator::here()) {
    return emulator::shuffle<emulator::Shuffle::up>("__shfl_up_sync", mask, value, delta, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Site site = emulator::here()) {
    return emulator::shuffle<emulator::Shuffle::down>("__shfl_down_sync", mask, value, delta, width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, emulator::Site site = emulator::here()) {
    auto bits = static_cast<unsigned>(lanes);
    return emulator::shuffle<emulator::Shuffle::exclusive_or>("__shfl_xor_sync", mask, value, bits, width, site);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    unsigned bit = predicate != 0 ? 1u << emulator::current->lane : 0u;
    return emulator::fold<emulator::Or>("__ballot_sync", mask, bit, site);
}
static inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::fold<emulator::Or>("__any_sync", mask, static_cast<int>(predicate != 0), site);
}
static inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
    return emulator::fold<emulator::And>("__all_sync", mask, static_cast<int>(predicate != 0), site);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, emulator::Site site = emulator::here()) {
    emulator::MatchCall call{{"__match_any_sync", mask, site, emulator::compute_match}, 0, 0};
    __builtin_memcpy(&call.value, &value, sizeof(T));
    emulator::warp_rendezvous(call);
    return call.result;
}

#define EMULATOR_REDUCE(T, name, Operation)                                                            \
    static inline T __reduce_##name##_sync(unsigned mask, T value, emulator::Site site = emulator::here()) { \
        return emulator::fold<emulator::Operation>("__reduce_" #name "_sync", mask, value, site);      \
    }
EMULATOR_REDUCE(unsigned, add, Add)
EMULATOR_REDUCE(int, add, Add)
EMULATOR_REDUCE(unsigned, min, Min)
EMULATOR_REDUCE(int, min, Min)
EMULATOR_REDUCE(unsigned, max, Max)
EMULATOR_REDUCE(int, max, Max)
EMULATOR_REDUCE(unsigned, and, And)
EMULATOR_REDUCE(unsigned, or, Or)
EMULATOR_REDUCE(unsigned, xor, Xor)
#undef EMULATOR_REDUCE
