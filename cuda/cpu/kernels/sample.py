# ruff: noqa: PLR0913, PLR0917 - kernels take addresses and strides one by one
"""The next token of every sampled row: penalties, bias, bans, top-k, top-p, min-p, Gumbel-max draw, log-probabilities.

`cuda.kernels.reference` defines each step and its order; here are the short cuts: greedy rows take one pass, and a
token whose weight cannot win draws no noise.
"""

import math

import numpy as np

from cuda.cpu.kernels.jit import device, fast_device
from cuda.cpu.kernels.math import exp, gumbel, noise
from cuda.cpu.kernels.memory import Address, Doubles, Floats, Ints, Longs, doubles, fetch_add, floats, ints, longs
from cuda.cpu.kernels.select import BINS, cut

TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION = 0, 1, 2, 3, 4, 5
NUM_REALS = 8
"""float64 a slot."""
TOP_K, SEED, MIN_TOKENS, LOGPROBS, PROMPT, BIAS_IDS, BIAS_VALUES, NUM_BIAS, BANNED, NUM_BANNED = range(10)
NUM_INTEGERS = 16
"""int64 a slot: LOGPROBS -1 is off; *_IDS, *_VALUES and BANNED are addresses of int32, float32 and int32."""
MAX_TOP = 20
"""Alternatives a row can report."""

_SMALLEST_GAP = 2.0**-33  # 1 - u for the largest u
_SLACK = 1.0001  # weights are float32, the decision is float64
_NEVER = np.float32(-np.inf)


def scratch_bytes(vocab_size: int) -> int:
    """What one thread needs: a row of logits, weights, kept ids, token counts and the bins of a cut."""
    return 16 * vocab_size + 8 * BINS + 64


@device
def sample(
    next_row: Address,
    rows: int,
    logits: Address,
    ldx: int,
    vocab: int,
    slots: Address,
    positions: Address,
    tokens: Address,
    tokens_stride: int,
    reals: Address,
    integers: Address,
    out: Address,
    out_logprobs: Address,
    top_ids: Address,
    top_logprobs: Address,
    scratch: Address,
) -> int:
    """Row i is slot slots[i]; its token, at positions[i] of the sequence, goes to out[i] and into the slot's tokens."""
    slot_of, position_of = ints(slots, rows), ints(positions, rows)
    chosen, chosen_logprobs = ints(out, rows), floats(out_logprobs, rows)
    mine = 0
    while True:
        row = fetch_add(next_row, 1)
        if row >= rows:
            break
        mine += 1
        slot, position = int(slot_of[row]), int(position_of[row])
        real = doubles(reals + slot * NUM_REALS * 8, NUM_REALS)
        integer = longs(integers + slot * NUM_INTEGERS * 8, NUM_INTEGERS)
        sequence = ints(tokens + slot * tokens_stride, position + 1)
        raw = floats(logits + row * ldx, vocab)
        token = _draw(
            _adjust(raw, sequence, position, real, integer, scratch, vocab), position, real, integer, scratch, vocab
        )
        chosen[row] = token
        sequence[position] = token
        if integer[LOGPROBS] >= 0:
            top = integer[LOGPROBS]
            at = row * MAX_TOP * 4
            chosen_logprobs[row] = _logprobs(
                raw, token, top, ints(top_ids + at, MAX_TOP), floats(top_logprobs + at, MAX_TOP)
            )
    return mine


@device
def _adjust(
    raw: Floats, sequence: Ints, position: int, real: Doubles, integer: Longs, scratch: Address, vocab: int
) -> Floats:
    """The logits that are drawn from: `raw` itself if nothing changes them, else a changed copy."""
    penalised = real[REPETITION] != 1.0 or real[PRESENCE] != 0.0 or real[FREQUENCY] != 0.0
    banned = integer[NUM_BANNED] if position - integer[PROMPT] < integer[MIN_TOKENS] else 0
    if not penalised and integer[NUM_BIAS] == 0 and banned == 0:
        return raw
    work = floats(scratch, vocab)
    for i in range(vocab):
        work[i] = raw[i]
    if penalised:
        _penalise(work, sequence, position, integer[PROMPT], real, ints(scratch + 12 * vocab, vocab))
    ids, values = ints(integer[BIAS_IDS], integer[NUM_BIAS]), floats(integer[BIAS_VALUES], integer[NUM_BIAS])
    for i in range(integer[NUM_BIAS]):
        work[ids[i]] += values[i]
    never = ints(integer[BANNED], banned)
    for i in range(banned):
        work[never[i]] = _NEVER
    return work


@device
def _penalise(work: Floats, sequence: Ints, position: int, prompt: int, real: Doubles, counts: Ints) -> None:
    """`counts` holds occurrences among outputs, plus 1; other kernels leave there what they like."""
    repetition = np.float32(real[REPETITION])
    for i in range(position):
        counts[sequence[i]] = 0
    for i in range(position):
        token = sequence[i]
        if counts[token] == 0:
            counts[token] = 1
            value = work[token]
            work[token] = value / repetition if value > 0 else value * repetition
        if i >= prompt:
            counts[token] += 1
    for i in range(position):
        token = sequence[i]
        if counts[token] > 1:
            change = real[FREQUENCY] * (counts[token] - 1) + real[PRESENCE]
            work[token] -= np.float32(change)
        counts[token] = 0


@device
def _draw(logits: Floats, position: int, real: Doubles, integer: Longs, scratch: Address, vocab: int) -> int:
    best = _argmax(logits, vocab)
    if real[TEMPERATURE] == 0.0:
        return best
    weights = floats(scratch + 4 * vocab, vocab)
    kept = ints(scratch + 8 * vocab, vocab)
    bins = doubles(scratch + 16 * vocab, BINS)
    _weigh(logits, logits[best], np.float32(min(1e30, 1.0 / real[TEMPERATURE])), weights, vocab)
    seed = np.uint64(integer[SEED])
    limited = 0 < integer[TOP_K] < vocab
    if not limited and real[TOP_P] >= 1.0 and real[MIN_P] <= 0.0:
        return _race(logits, weights, ints(scratch, 0), vocab, best, seed, position, real[TEMPERATURE])
    count = _candidates(weights, kept, real[MIN_P] if not limited and real[TOP_P] >= 1.0 else 0.0, vocab)
    if limited:
        count = cut(logits, floats(scratch, 0), kept, count, np.float64(integer[TOP_K]), bins)
    if real[TOP_P] < 1.0:
        total = 0.0
        for i in range(count):
            total += np.float64(weights[kept[i]])
        count = cut(logits, weights, kept, count, real[TOP_P] * total, bins)
    if real[MIN_P] > 0.0:
        survivors = 0
        for i in range(count):
            if weights[kept[i]] >= real[MIN_P]:
                kept[survivors] = kept[i]
                survivors += 1
        count = survivors
    return _race(logits, weights, kept, count, best, seed, position, real[TEMPERATURE])


@device
def _candidates(weights: Floats, kept: Ints, floor: float, vocab: int) -> int:
    count = 0
    for token in range(vocab):
        kept[count] = token
        count += weights[token] >= floor
    return count


@device
def _race(
    logits: Floats,
    weights: Floats,
    kept: Ints,
    count: int,
    best: int,
    seed: np.uint64,
    position: int,
    temperature: float,
) -> int:
    """The argmax of logit / temperature + Gumbel noise over `kept` (empty: all), ties to the lowest id.

    With E = -log u the draw is the least E / weight, and E >= 1 - u: a token whose 1 - u is too large cannot win.
    """
    words = np.empty(4, np.uint64)
    top = np.float64(logits[best])
    winner = int(best)
    highest = gumbel(seed, position, best, words)
    reach = math.exp(-highest) * _SLACK
    block = -1
    for i in range(count):
        token = int(kept[i]) if kept.size else int(i)
        bound = np.float64(weights[token]) * reach
        if bound < _SMALLEST_GAP or token == best:
            continue
        if token >> 2 != block:
            block = token >> 2
            noise(seed, position, block, words)
        word = np.float64(words[token & 3])
        if (4294967295.5 - word) * 2.0**-32 > bound:
            continue
        score = (np.float64(logits[token]) - top) / temperature - math.log(-math.log((word + 0.5) * 2.0**-32))
        if score > highest or (score == highest and token < winner):
            highest = score
            winner = token
            reach = math.exp(-highest) * _SLACK
    return winner


@fast_device
def _highest(logits: Floats, count: int) -> np.float32:
    result: np.float32 = logits[0]
    for i in range(count):
        result = max(result, logits[i])
    return result


@device
def _argmax(logits: Floats, count: int) -> int:
    """The lowest index of the largest."""
    highest = _highest(logits, count)
    for i in range(count):
        if logits[i] == highest:
            return i
    return 0


@device
def _weigh(logits: Floats, top: np.float32, inverse_temperature: np.float32, weights: Floats, count: int) -> None:
    for i in range(count):
        weights[i] = exp((logits[i] - top) * inverse_temperature)


@fast_device
def _sum_of_exponentials(logits: Floats, top: np.float32, count: int) -> float:
    total = 0.0
    for start in range(0, count, 1024):
        part = np.float32(0.0)
        for i in range(start, min(count, start + 1024)):
            part += exp(logits[i] - top)
        total += float(part)
    return total


@device
def _logprobs(raw: Floats, token: int, top: int, ids: Ints, values: Floats) -> np.float32:
    """The log softmax of `token`; the `top` most likely ones, best first, ties by id, go to `ids` and `values`."""
    vocab = raw.size
    highest = _highest(raw, vocab)
    shift = np.float64(highest) + math.log(_sum_of_exponentials(raw, highest, vocab))
    held = 0
    for i in range(vocab if top > 0 else 0):
        value = raw[i]
        if held == top and value <= values[held - 1]:
            continue
        place = held if held < top else top - 1
        while place > 0 and values[place - 1] < value:
            values[place] = values[place - 1]
            ids[place] = ids[place - 1]
            place -= 1
        values[place] = value
        ids[place] = i
        held = min(top, held + 1)
    for i in range(held):
        values[i] = np.float32(np.float64(values[i]) - shift)
    return np.float32(np.float64(raw[token]) - shift)
