// Computes  tokens[slot, position] = out_tokens[r] = the token drawn from logits[r] with the settings of slot r:
//           repetition, frequency and presence penalties, bias, ban of ends until min_tokens, temperature, top-k, top-p,
//           min-p, Gumbel-max by Philox; temperature 0 takes the largest. With logprobs: log softmax of the raw logits
//           at the token, and at the best of all. logits [R, V] fp32, slots and positions [R] int32 (slot −1: skipped).
// Owns      A block owns a row, a thread every blockDim.x-th four tokens. Adjusted logits go to scratch [slots, V], only
//           for rows that have any; `logits` are left as they are.
// Traffic   Passes over V·4 bytes, in 16-byte accesses if V % 4 = 0: greedy 1; drawn 2; top-k up to 512 tokens 2; top-p 3.
//           More than fit a list of 2,048: top-k 5, top-p 7; + 2 with ties at the edge. Logprobs + 1, alternatives + 1.
//           Bias or ban + 3, penalties + 5 and the history, once with an atomic a token. Shared memory: 33 KB.
// Bound     Latency: what one SM reads, some 10 µs a pass for V = 152k; noise for all tokens some 40 µs of arithmetic.
// Numerics  Weights are fp32 exponentials, summed as integers of 2⁻⁴⁴: exact in any order, so a draw depends on nothing
//           but the row, and all ranks draw the same. The race is run in fp32 and decided in fp64 between those that
//           come within 1e-4 of the first. Log-probabilities: 1e-5. A NaN counts as −inf; if all are −inf, all are equal.
// Requires  V ≤ 2¹⁹, blockDim.x a multiple of 32 up to 512, no slot twice in a step, distinct bias ids, distinct banned
//           ids, both below V. Checked by sample.py, the slots by the scheduler.
#include "philox.cuh"
#include "select.cuh"

constexpr i32 max_alternatives = 20, max_banned = 192, max_bias = 1024;
constexpr float smallest_gap = 1.1641532e-10f;  // 2⁻³³: 1 − u for the largest u
constexpr float slack = 1.0001f;                // between times in fp32 and exact ones: 25 times their error

// As sample.py writes it.
struct Settings {
    double temperature, top_p, frequency, presence;
    u64 seed;
    float inverse_temperature, min_p, repetition;
    i32 top_k, min_tokens, logprobs, num_prompt_tokens, num_banned, num_bias, unused;
    i32 banned[max_banned];
    struct {
        i32 id;
        float value;
    } bias[max_bias];
};
static_assert(sizeof(Settings) == 9040, "sample.py");

__device__ __noinline__ u64 total_of(Candidates candidates, Weigher weigh) {
    u64 mine = 0;
    candidates.each([&](u64 standing) { mine += weigh(standing); });
    return block_fold(mine, Sum{});
}

// The best token of a thread's share of the row, and of the row.
struct Bests {
    u64 mine, all;
};
__device__ __noinline__ Bests find_bests(Row row) {
    u64 mine = 0;
    row.each([&](u64 standing) { mine = max(mine, standing); });
    return {mine, block_fold(mine, Max{})};
}

// counts[token] becomes 0 for tokens that never occurred, else twice the times among outputs, plus 1 if in the prompt.
__device__ __forceinline__ void count_history(i32* counts, i32 num_tokens, const i32* history, i32 length, i32 prompt) {
    for (i32 i = threadIdx.x; i < num_tokens; i += blockDim.x) counts[i] = 0;
    __syncthreads();  // nothing is counted before all counts are 0
    for (i32 i = threadIdx.x; i < length; i += blockDim.x) {
        const i32 token = history[i];
        if (token < 0 || token >= num_tokens) continue;
        if (i < prompt)
            atomicOr(&counts[token], 1);
        else
            atomicAdd(&counts[token], 2);
    }
    __syncthreads();  // counts are read when complete
}

__device__ __forceinline__ float penalise(float logit, i32 count, const Settings& settings) {
    if (count == 0) return logit;
    logit = logit > 0.0f ? __fdiv_rn(logit, settings.repetition) : __fmul_rn(logit, settings.repetition);
    if (count < 2) return logit;
    const double change = fma(settings.frequency, static_cast<double>(count / 2), settings.presence);
    return __fsub_rn(logit, static_cast<float>(change));
}

// Returns the logits to draw from: `raw` if nothing changes them, else `adjusted`, whose words first serve as counts.
__device__ __noinline__ const float* adjust(float* adjusted, const float* raw, i32 num_tokens, const i32* history,
                                            i32 position, const Settings& settings) {
    const bool penalised = settings.repetition != 1.0f || settings.frequency != 0.0 || settings.presence != 0.0;
    const i32 num_outputs = position - settings.num_prompt_tokens, num_bias = settings.num_bias;
    const i32 num_banned = num_outputs < settings.min_tokens ? settings.num_banned : 0;
    if (!penalised && num_bias == 0 && num_banned == 0) return raw;
    i32* counts = reinterpret_cast<i32*>(adjusted);
    if (penalised) count_history(counts, num_tokens, history, position, settings.num_prompt_tokens);
    for (i32 i = threadIdx.x; i < num_tokens; i += blockDim.x)
        adjusted[i] = penalised ? penalise(raw[i], counts[i], settings) : raw[i];
    __syncthreads();  // a bias is added to what another thread has written
    for (i32 i = threadIdx.x; i < num_bias; i += blockDim.x) adjusted[settings.bias[i].id] += settings.bias[i].value;
    __syncthreads();  // a ban follows the same token's bias
    for (i32 i = threadIdx.x; i < num_banned; i += blockDim.x) adjusted[settings.banned[i]] = minus_infinity();
    __syncthreads();  // adjusted logits are read by other threads than wrote them
    return adjusted;
}

// Noise of one draw: a word for every token.
struct Noise {
    u64 seed;
    i32 position;

    __device__ __forceinline__ PhiloxWords of_quad(i32 quad) const { return philox(seed, quad, position, 0, 0); }
    __device__ __forceinline__ u32 of_token(i32 token) const {
        const PhiloxWords words = of_quad(token / 4);
        const u32 low = token % 2 == 0 ? words.word[0] : words.word[1];
        const u32 high = token % 2 == 0 ? words.word[2] : words.word[3];
        return token % 4 < 2 ? low : high;
    }
};

// 1 − u of a word's u = (word + ½) · 2⁻³²; and −log u, of which it is a lower bound.
__device__ __forceinline__ float gap_of(u32 word) { return (static_cast<float>(~word) + 0.5f) * 2.3283064e-10f; }
__device__ __forceinline__ float exponential_of(u32 word) {
    return word >> 31 != 0 ? -log1pf(-gap_of(word)) : -logf((static_cast<float>(word) + 0.5f) * 2.3283064e-10f);
}

// Gumbel-max as a race: a token arrives at −log u / weight, the first one wins.
struct Race {
    Weigher weigh;
    Noise noise;
    float min_p;

    // A token's weight; 0 for those that take no part.
    __device__ __forceinline__ float chance(float logit, i32 token) const {
        const float weight = weigh.weight(number_in(logit));
        const bool is_kept = weigh.least == 0 || standing_of(logit, token) >= weigh.least;
        return is_kept && weight >= min_p ? weight : 0.0f;
    }

    // Calls meet(standing, time) for tokens that may arrive by `reach`, which may shrink meanwhile.
    template <class Meet>
    __device__ __forceinline__ void run(const Candidates& candidates, const float& reach, Meet meet) const {
        const i32 num_tokens = candidates.row.num_tokens;
        if (candidates.listed != 0) {
            candidates.each([&](u64 standing) {
                const i32 token = token_of(standing);
                const float mine = chance(logit_of(standing), token);
                const u32 word = noise.of_token(token);
                if (gap_of(word) <= mine * reach) meet(standing, exponential_of(word) / mine);
            });
            return;
        }
        candidates.row.each_quad([&](i32 quad, const Vector<float>& values) {
            float chances[4], most = 0.0f;
#pragma unroll
            for (i32 i = 0; i < 4; ++i) {
                const i32 token = 4 * quad + i;
                chances[i] = token < num_tokens ? chance(values.elements[i], token) : 0.0f;
                most = fmaxf(most, chances[i]);
            }
            if (most * reach < smallest_gap) return;
            const PhiloxWords words = noise.of_quad(quad);
#pragma unroll
            for (i32 i = 0; i < 4; ++i)
                if (gap_of(words.word[i]) <= chances[i] * reach)
                    meet(standing_of(values.elements[i], 4 * quad + i), exponential_of(words.word[i]) / chances[i]);
        });
    }
};

// The race in fp64: the Gumbel-max score above −64, in units of 2⁻⁴⁶. Only those near the first, above −4, ask for it.
__device__ __noinline__ u64 exact_score(u64 standing, float top, Noise noise, double temperature) {
    const double u = (static_cast<double>(noise.of_token(token_of(standing))) + 0.5) * 2.3283064365386963e-10;
    const float logit = logit_of(standing);
    const double ahead = logit == top ? 0.0 : (static_cast<double>(logit) - top) / temperature;
    return static_cast<u64>((ahead - log(-log(u)) + 64.0) * 70368744177664.0);
}

// A thread's token, and what it is worth to the block.
struct Runner {
    u64 standing, score;
};

// The best of those of a thread's tokens that arrive by `reach`.
__device__ __noinline__ Runner best_by(float reach, Race race, Candidates candidates, double temperature) {
    Runner best{0, 0};
    race.run(candidates, reach, [&](u64 standing, float time) {
        if (time > reach) return;
        const u64 score = exact_score(standing, race.weigh.top, race.noise, temperature);
        const bool wins = score > best.score || (score == best.score && token_of(standing) < token_of(best.standing));
        if (wins) best = {standing, score};
    });
    return best;
}

// The first of a thread's tokens to arrive, and the times of the first two, as far as they may win.
struct Arrivals {
    float first, second;
    u64 standing;
};
__device__ __noinline__ Arrivals arrivals_by(float reach, Race race, Candidates candidates) {
    Arrivals seen{-minus_infinity(), -minus_infinity(), 0};
    race.run(candidates, reach, [&](u64 standing, float time) {
        seen.second = fminf(seen.second, fmaxf(seen.first, time));
        if (time < seen.first) {
            seen.first = time;
            seen.standing = standing;
            reach = fminf(reach, time * slack);
        }
    });
    return seen;
}

// `favourite` is the best token, which always takes part.
__device__ __forceinline__ i32 winner_of(const Race& race, const Candidates& candidates, u64 favourite,
                                         double temperature) {
    const float reach = exponential_of(race.noise.of_token(token_of(favourite))) * slack;  // nobody slower can win
    const Arrivals seen = arrivals_by(reach, race, candidates);
    const u64 earliest = block_fold(~__float_as_uint(seen.first), Max{});  // times are positive: bits order like them
    const float limit = __uint_as_float(~static_cast<u32>(earliest)) * slack;
    Runner runner{0, 0};
    if (__syncthreads_or(seen.second <= limit))  // rare: of a thread that met several, only the first is known
        runner = best_by(limit, race, candidates, temperature);
    else if (seen.first <= limit)
        runner = {seen.standing, exact_score(seen.standing, race.weigh.top, race.noise, temperature)};
    const u64 best = block_fold(runner.score, Max{});
    const u32 id = runner.score == best ? last_id - static_cast<u32>(token_of(runner.standing)) : 0u;
    return static_cast<i32>(last_id - block_fold(id, Max{}));
}

__device__ __forceinline__ u64 nucleus_budget(double top_p, u64 total) {
    const u64 budget = static_cast<u64>(ceil(top_p * static_cast<double>(total)));  // as what comes before is whole
    return min(max(budget, 1ull), total);
}

__device__ __noinline__ i32 draw(Row row, Bests bests, i32 position, const Settings& settings) {
    Weigher weigh{logit_of(bests.all), settings.inverse_temperature, 0, false};
    Candidates candidates{row, 0};
    const i32 top_k = settings.top_k;
    const bool has_top_k = 0 < top_k && top_k < row.num_tokens, has_top_p = settings.top_p < 1.0;
    if (has_top_k) {
        if (top_k <= max_listed) candidates.listed = list_best(row, top_k, bests.mine);
        weigh.least = cut(candidates, count_from(0), top_k);
    }
    if (has_top_p) {
        const u64 total = total_of(candidates, weigh), budget = nucleus_budget(settings.top_p, total);
        if (!has_top_k) {
            // All tokens that weigh a V-th of the rest or less weigh no more than the rest: none is in the nucleus.
            const i32 listed = list_heavier(row, weigh, (total - budget) / static_cast<u64>(row.num_tokens));
            if (listed <= max_listed) candidates.listed = listed;
        }
        weigh.least = max(weigh.least, cut(candidates, weigh, budget));
    }
    const Race race{weigh, {settings.seed, position}, settings.min_p};
    return winner_of(race, candidates, bests.all, settings.temperature);
}

// Log-probabilities of raw logits.
struct Normaliser {
    float top, log_total;

    __device__ __forceinline__ float operator()(float logit) const {
        return (logit == top ? 0.0f : logit - top) - log_total;
    }
};
__device__ __forceinline__ Normaliser normaliser_of(const Row& row, u64 best) {
    const u64 total = total_of({row, 0}, {logit_of(best), 1.0f, 0, false});
    return {logit_of(best), logf(static_cast<float>(total) / weight_one)};
}

__device__ __noinline__ void report_best(Row row, i32 count, u64 mine, Normaliser logprob, i32* ids, float* logprobs) {
    count = min(count, min(max_alternatives, row.num_tokens));
    if (count == 0) return;
    const i32 listed = list_best(row, count, mine);
    Candidates{row, listed}.each([&](u64 standing) {
        i32 better = 0;
        for (i32 other = 0; other < listed; ++other) better += selection().listed[other] > standing;
        if (better >= count) return;
        ids[better] = token_of(standing);
        logprobs[better] = logprob(logit_of(standing));
    });
}

extern "C" __global__ void __launch_bounds__(512)
sample(const float* logits, i32 num_tokens, const i32* sampled_slots, const i32* sampled_positions, i32* tokens,
       i32 num_slots, i32 stride, const Settings* all_settings, float* scratch, i32* out_tokens, float* out_logprobs,
       i32* top_ids, float* top_logprobs) {
    const i32 r = blockIdx.x, slot = sampled_slots[r], position = sampled_positions[r];
    if (slot < 0 || slot >= num_slots || position < 0 || position >= stride) return;
    const Settings& settings = all_settings[slot];
    i32* history = tokens + static_cast<i64>(slot) * stride;
    const Row raw{logits + static_cast<i64>(r) * num_tokens, num_tokens};
    Bests bests = find_bests(raw);
    Normaliser logprob{};
    const bool reports = settings.logprobs >= 0;
    if (reports) {
        logprob = normaliser_of(raw, bests.all);
        const i64 first = static_cast<i64>(r) * max_alternatives;
        report_best(raw, settings.logprobs, bests.mine, logprob, top_ids + first, top_logprobs + first);
    }
    float* adjusted = scratch + static_cast<i64>(slot) * num_tokens;
    const Row row{adjust(adjusted, raw.logits, num_tokens, history, position, settings), num_tokens};
    if (row.logits != raw.logits) bests = find_bests(row);
    const i32 token = settings.temperature == 0.0 ? token_of(bests.all) : draw(row, bests, position, settings);
    if (threadIdx.x != 0) return;
    out_tokens[r] = token;
    history[position] = token;
    if (reports) out_logprobs[r] = logprob(number_in(raw.logits[token]));
}
