"""The CPU sampler against its definition, token for token, over random settings."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from cuda.cpu.kernels import sample as layout
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import SAMPLE
from cuda.kernels import reference
from cuda.kernels.reference import Draw
from tests.cuda.kernels.runner import aligned, run_op

VOCAB = 1000


@dataclass
class Case:
    """One row to sample; `min_tokens` bans `draw.banned`."""

    logits: Any
    draw: Draw
    prompt: list[int] = field(default_factory=lambda: [1, 2, 3])
    output: list[int] = field(default_factory=list)
    min_tokens: int = 0
    logprobs: int = -1


@dataclass
class Sampled:
    tokens: list[int]
    logprobs: Any
    top_ids: Any
    top_logprobs: Any
    stored: list[int]


def _sample(cases: list[Case]) -> Sampled:
    rows = len(cases)
    tokens = np.zeros((rows, 64), np.int32)
    reals, integers = np.zeros((rows, layout.NUM_REALS)), np.zeros((rows, layout.NUM_INTEGERS), np.int64)
    keep = []
    for slot, case in enumerate(cases):
        sequence, draw = case.prompt + case.output, case.draw
        tokens[slot, : len(sequence)] = sequence
        reals[slot, :6] = (
            draw.temperature, draw.top_p, draw.min_p,
            draw.presence_penalty, draw.frequency_penalty, draw.repetition_penalty,
        )  # fmt: skip
        ids, values = np.array(list(draw.logit_bias), np.int32), np.array(list(draw.logit_bias.values()), np.float32)
        banned = np.array(draw.banned, np.int32)
        keep.append((ids, values, banned))
        integers[slot, :10] = (
            draw.top_k, draw.seed, case.min_tokens, case.logprobs, len(case.prompt),
            address(ids), address(values), len(ids), address(banned), len(banned),
        )  # fmt: skip
    lengths = np.array([len(case.prompt) + len(case.output) for case in cases], np.int32)
    logits = aligned(np.stack([case.logits for case in cases]))
    out, logprobs = aligned_zeros(rows, np.int32), aligned_zeros(rows, np.float32)
    top_ids, top_logprobs = aligned_zeros((rows, 20), np.int32), aligned_zeros((rows, 20), np.float32)
    slots = np.arange(rows, dtype=np.int32)
    batch = [logits, logits.strides[0], logits.shape[1], slots, lengths, tokens, tokens.strides[0], reals, integers]
    run_op(SAMPLE, rows, [*batch, out, logprobs, top_ids, top_logprobs])
    return Sampled(out.tolist(), logprobs, top_ids, top_logprobs, tokens[slots, lengths].tolist())


def _random_case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    logits = (random.normal(size=VOCAB) * random.choice([0.1, 2, 8])).astype(np.float32)
    output = random.integers(0, VOCAB, random.integers(0, 20)).tolist()
    draw = Draw(
        temperature=float(random.choice([0, 0.3, 1, 2])),
        top_k=int(random.choice([0, 1, 5, 50, VOCAB, 5000])),
        top_p=float(random.choice([1, 0.95, 0.5, 0.01])),
        min_p=float(random.choice([0, 0.01, 0.3])),
        repetition_penalty=float(random.choice([1, 1.3, 0.7])),
        frequency_penalty=float(random.choice([0, 0.5, -0.5])),
        presence_penalty=float(random.choice([0, 1])),
        logit_bias={int(t): float(random.normal() * 5) for t in random.integers(0, VOCAB, random.integers(0, 4))},
        banned=tuple(random.integers(0, VOCAB, 2).tolist()) if random.random() < 0.5 else (),
        seed=int(random.integers(0, 2**63)),
    )
    return Case(logits, draw, output=output, min_tokens=len(output) + 1)


def _expected(case: Case) -> int:
    return reference.sample(case.logits, case.prompt, case.output, case.draw)


def test_every_setting_draws_the_defined_token() -> None:
    cases = [_random_case(seed) for seed in range(300)]
    sampled = _sample(cases)
    assert sampled.tokens == [_expected(case) for case in cases]
    assert sampled.stored == sampled.tokens


def test_a_seed_means_the_same_in_any_company() -> None:
    cases = [_random_case(seed) for seed in range(20)]
    together = _sample(cases).tokens
    assert [_sample([case]).tokens[0] for case in reversed(cases)] == together[::-1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_are_banned_until_min_tokens_are_out(temperature: float) -> None:
    logits = np.full(VOCAB, -50.0)
    logits[7], logits[8] = 50.0, 0.0
    draw = Draw(temperature=temperature, banned=(7,))
    cases = [Case(logits, draw, output=[5] * count, min_tokens=2) for count in (0, 1, 2, 3)]
    assert _sample(cases).tokens == [8, 8, 7, 7]


def test_equal_logits_are_cut_by_index() -> None:
    logits = np.zeros(VOCAB)
    top_k = {_sample([Case(logits, Draw(top_k=3, seed=seed))]).tokens[0] for seed in range(40)}
    top_p = {_sample([Case(logits, Draw(top_p=0.003, seed=seed))]).tokens[0] for seed in range(40)}
    assert top_k == top_p == {0, 1, 2}
    assert _sample([Case(logits, Draw(temperature=0))]).tokens == [0]


def test_tiny_temperatures_are_greedy() -> None:
    case = _random_case(1)
    case.draw = Draw(temperature=1e-30)
    assert _sample([case]).tokens == [int(np.argmax(case.logits))]


def test_draws_without_filters_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1])).astype(np.float32)
    drawn = _sample([Case(logits, Draw(seed=seed)) for seed in range(4000)]).tokens
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, [0.5, 0.25, 0.15, 0.1], atol=0.025)


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_logits(count: int) -> None:
    case = _random_case(4)
    case.logits[[10, 20]] = case.logits.max() + 1  # a tie at the top
    case.logprobs = count
    sampled = _sample([case])
    expected, best = reference.logprobs(case.logits, count)
    assert sampled.top_ids[0, :count].tolist() == best.tolist()
    np.testing.assert_allclose(sampled.top_logprobs[0, :count], expected[best], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sampled.logprobs[0], expected[sampled.tokens[0]], rtol=1e-5, atol=1e-5)
