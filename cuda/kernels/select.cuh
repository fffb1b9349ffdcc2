// The best tokens of a row, exactly and without sorting it: standings that order tokens, the candidates among which they
// are looked for, and the cut that top-k and top-p share. All of it is maxima and sums of integers, so that no order of
// threads, no block size and no place of a row in its batch can change a result. The whole block calls every function.
// What is not inlined is called from several places, and would be most of the kernel's code.
#pragma once
#include "common.cuh"

constexpr i32 digit_bits = 11, num_bins = 1 << digit_bits, num_digits = 5;
constexpr i32 id_bits = num_digits * digit_bits - 32;
constexpr u32 last_id = (1u << id_bits) - 1;
constexpr i32 max_listed = 2048;
constexpr float weight_one = 17592186044416.0f;  // 2⁴⁴

// What the block shares while it selects; 32-bit halves, because only 32-bit atomics are native in shared memory.
struct Selection {
    u32 low[num_bins], high[num_bins];
    u64 listed[max_listed];
    u64 partial[32];
    u64 edge_before, edge_total;
    i32 edge_bin, num_listed;
};
__device__ __forceinline__ Selection& selection() {
    __shared__ Selection shared;
    return shared;
}

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// NaN counts as −inf.
__device__ __forceinline__ float number_in(float logit) { return logit == logit ? logit : minus_infinity(); }

// A token's standing: larger logits first, then lower ids. −0 and +0 tie. 0 stands for no token.
__device__ __forceinline__ u64 standing_of(float logit, i32 token) {
    const u32 bits = __float_as_uint(number_in(logit) + 0.0f);
    const u32 key = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
    return static_cast<u64>(key) << id_bits | (last_id - static_cast<u32>(token));
}
__device__ __forceinline__ float logit_of(u64 standing) {
    const u32 key = static_cast<u32>(standing >> id_bits);
    return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ i32 token_of(u64 standing) {
    return static_cast<i32>(last_id - (static_cast<u32>(standing) & last_id));
}

// The logits of a vocabulary. A thread owns quads of four tokens in turn and loads two ahead.
struct Row {
    const float* logits;
    i32 num_tokens;

    __device__ __forceinline__ Vector<float> load(i32 quad) const {
        if (num_tokens % 4 == 0) return load_vector(logits + 4 * quad);
        Vector<float> values{};
        for (i32 i = 0; i < 4; ++i)
            if (4 * quad + i < num_tokens) values.elements[i] = logits[4 * quad + i];
        return values;
    }
    template <class Visit> __device__ __forceinline__ void each_quad(Visit visit) const {
        const i32 num_quads = (num_tokens + 3) / 4, stride = blockDim.x;
        Vector<float> values{}, next{}, after{};
        if (threadIdx.x < num_quads) values = load(threadIdx.x);
        if (threadIdx.x + stride < num_quads) next = load(threadIdx.x + stride);
        for (i32 quad = threadIdx.x; quad < num_quads; quad += stride) {
            if (quad + 2 * stride < num_quads) after = load(quad + 2 * stride);
            visit(quad, values);
            values = next;
            next = after;
        }
    }
    template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
        each_quad([&](i32 quad, const Vector<float>& values) {
#pragma unroll
            for (i32 i = 0; i < 4; ++i)
                if (4 * quad + i < num_tokens) visit(standing_of(values.elements[i], 4 * quad + i));
        });
    }
};

// The first `listed` tokens of `selection().listed`, or if that is 0 all of the row.
struct Candidates {
    Row row;
    i32 listed;

    // Gives every thread its share of standings, in no order that matters.
    template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
        if (listed == 0)
            row.each(visit);
        else
            for (i32 number = threadIdx.x; number < listed; number += blockDim.x) visit(selection().listed[number]);
    }
};

// What a token counts for: 1, or exp((logit − top) / temperature) in units of 2⁻⁴⁴; nothing if it stands below `least`.
struct Weigher {
    float top, inverse_temperature;
    u64 least;
    bool counts;

    __device__ __forceinline__ float weight(float logit) const {
        return logit == top ? 1.0f : expf((logit - top) * inverse_temperature);  // inf − inf is no number
    }
    __device__ __forceinline__ u64 operator()(u64 standing) const {
        if (standing < least) return 0;
        return counts ? 1 : static_cast<u64>(weight(logit_of(standing)) * weight_one);
    }
};
__device__ __forceinline__ Weigher count_from(u64 least) { return {0.0f, 0.0f, least, true}; }

struct Max {
    __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return max(a, b); }
};
struct Sum {
    __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return a + b; }
};

template <class Operation> __device__ __forceinline__ u64 warp_fold(u64 value, Operation operation) {
#pragma unroll
    for (i32 distance = 16; distance > 0; distance /= 2)
        value = operation(value, __shfl_xor_sync(full_warp, value, distance));
    return value;
}

// The maximum or sum over the block, for every thread. 0 is neutral to both.
template <class Operation> __device__ __noinline__ u64 block_fold(u64 value, Operation operation) {
    u64* partial = selection().partial;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    value = warp_fold(value, operation);
    if (lane == 0) partial[warp] = value;
    __syncthreads();  // no warp reads `partial` before every warp has written its own
    value = warp_fold(lane < num_warps ? partial[lane] : 0, operation);
    __syncthreads();  // the next use of `partial` overwrites nothing that is still read
    return value;
}

__device__ __forceinline__ u64 warp_running_sum(u64 value) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (i32 distance = 1; distance < 32; distance *= 2) {
        const u64 before = __shfl_up_sync(full_warp, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

// The sum over all threads before this one. A barrier must follow before `partial` is used again.
__device__ __forceinline__ u64 sum_before(u64 value) {
    u64* partial = selection().partial;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const u64 running = warp_running_sum(value);
    if (lane == 31) partial[warp] = running;
    __syncthreads();  // no warp reads `partial` before every warp has written its own
    const u64 warps = warp_running_sum(lane < num_warps ? partial[lane] : 0);
    const u64 before = __shfl_sync(full_warp, warps, max(warp - 1, 0));
    return (warp == 0 ? 0 : before) + running - value;
}

__device__ __forceinline__ void add_to_bin(u64 bin, u64 weight) {
    const u32 low = static_cast<u32>(weight), before = atomicAdd(&selection().low[bin], low);
    const u32 high = static_cast<u32>(weight >> 32) + (low > ~before ? 1u : 0u);  // the carry
    if (high != 0) atomicAdd(&selection().high[bin], high);
}
__device__ __forceinline__ u64 bin_total(i32 bin) {
    return static_cast<u64>(selection().high[bin]) << 32 | selection().low[bin];
}

// Finds the highest bin in which `budget`, more than 0 and at most what all bins weigh, runs out: writes the edge_*.
// A thread owns bins in a row, the first thread the highest.
__device__ __forceinline__ void find_edge(u64 budget) {
    const i32 owned = (num_bins + blockDim.x - 1) / blockDim.x;
    const i32 end = num_bins - static_cast<i32>(threadIdx.x) * owned, first = max(end - owned, 0);
    u64 mine = 0;
    for (i32 bin = end - 1; bin >= first; --bin) mine += bin_total(bin);
    u64 before = sum_before(mine);
    if (before >= budget || before + mine < budget) return;
    i32 bin = end - 1;
    while (before + bin_total(bin) < budget) before += bin_total(bin--);
    selection().edge_bin = bin;
    selection().edge_before = before;
    selection().edge_total = bin_total(bin);
}

// The last standing that is kept if tokens are kept, best first, while those before them weigh less than `budget`:
// kept is what stands at least so high. All candidates weigh at least `budget`, which is more than 0.
// Digit by digit from the top: a pass weighs the tokens that share the digits found so far by their next one. The third
// digit ends the logit; the last two are needed only where the edge parts equal logits.
__device__ __noinline__ u64 cut(Candidates candidates, Weigher weigh, u64 budget) {
    u64 prefix = 0;
    for (i32 shift = (num_digits - 1) * digit_bits;; shift -= digit_bits) {
        for (i32 bin = threadIdx.x; bin < num_bins; bin += blockDim.x) selection().low[bin] = selection().high[bin] = 0;
        __syncthreads();  // nothing is added to a bin before it is cleared
        candidates.each([&](u64 standing) {
            if (standing >> shift >> digit_bits != prefix) return;
            const u64 weight = weigh(standing);
            if (weight != 0) add_to_bin(standing >> shift & (num_bins - 1), weight);
        });
        __syncthreads();  // bins are read after everything was added
        find_edge(budget);
        __syncthreads();  // the edge is read after one thread has written it; bins and `partial` were read by all
        prefix = prefix << digit_bits | static_cast<u64>(selection().edge_bin);
        budget -= selection().edge_before;
        const u64 total = selection().edge_total, each = weigh(prefix << shift);
        const bool keeps_all = shift < id_bits && total - each < budget;  // of equal logits
        if (shift == 0 || keeps_all) return prefix << shift;
    }
}

// Lists the tokens that weigh more than `light`, and returns how many there are; if that is more than max_listed, some.
// All threads have read what they want of an earlier list before the last barrier.
__device__ __noinline__ i32 list_heavier(Row row, Weigher weigh, u64 light) {
    Selection& shared = selection();
    if (threadIdx.x == 0) shared.num_listed = 0;
    __syncthreads();  // nobody takes a number before the count is 0
    bool is_full = false;  // then who went on counting would only stand in line
    row.each([&](u64 standing) {
        if (is_full || weigh(standing) <= light) return;
        const i32 number = atomicAdd(&shared.num_listed, 1);
        is_full = number >= max_listed;
        if (!is_full) shared.listed[number] = standing;
    });
    __syncthreads();  // the list and its length are read when complete
    return shared.num_listed;
}

// Lists at least the `count` best tokens, which are at most max_listed and exist. `mine` is the thread's own best.
// Returns how many. The count-th best of the threads' bests stands no higher than the count-th best of all, and seldom
// much lower: so one pass mostly does.
__device__ __noinline__ i32 list_best(Row row, i32 count, u64 mine) {
    const i32 num_bests = min(static_cast<i32>(blockDim.x), (row.num_tokens + 3) / 4);
    if (count <= num_bests) {
        __syncthreads();  // an earlier list has been read
        if (threadIdx.x < num_bests) selection().listed[threadIdx.x] = mine;
        const u64 least = cut({row, num_bests}, count_from(0), count);  // which opens with a barrier
        const i32 listed = list_heavier(row, count_from(least), 0);
        if (listed <= max_listed) return listed;
    }
    return list_heavier(row, count_from(cut({row, 0}, count_from(0), count)), 0);
}
