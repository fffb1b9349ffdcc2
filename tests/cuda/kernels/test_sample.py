"""The sampler's kernel against its definition and against the CPU's kernel, token for token."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from cuda.emulator import DeviceArray, RawModule, Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import KERNELS
from cuda.kernels import reference
from cuda.kernels.reference import Draw
from cuda.kernels.sample import MAX_ALTERNATIVES, MAX_BANNED, MAX_BIAS, Sampler, SamplerTables, SlotSettings
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler
from tests.cuda.kernels.sampling import UNTOUCHED, Case, Sampled, random_case, sample

VOCAB = 500
ALONE: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.4},
    {"temperature": 1e-30},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.7},
    {"top_p": 0.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -1.5},
    {"logit_bias": {3: 8.0, 499: 7.5}},
    {"banned": (0, 1, 2, 3, 4)},
]


def gaussian(seed: int, vocab: int, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=vocab) * scale).astype(np.float32)


def assert_right(cases: list[Case], sampled: Sampled) -> None:
    assert sampled.tokens == [case.expected for case in cases]
    assert sampled.stored == sampled.tokens
    for row, case in enumerate(cases):
        if case.logprobs < 0:
            assert sampled.logprobs[row] == UNTOUCHED
            continue
        logprobs, best = reference.logprobs(case.logits, case.logprobs)
        np.testing.assert_allclose(sampled.logprobs[row], logprobs[sampled.tokens[row]], rtol=1e-5, atol=1e-5)
        assert sampled.top_ids[row, : len(best)].tolist() == best.tolist()
        np.testing.assert_allclose(sampled.top_logprobs[row, : len(best)], logprobs[best], rtol=1e-5, atol=1e-5)
        assert (sampled.top_ids[row, len(best) :] == UNTOUCHED).all()


@needs_compiler
@each_way
@pytest.mark.parametrize(("vocab", "num_cases", "max_threads"), [(1, 2, 512), (7, 12, 64), (33, 12, 512), (500, 24, 96),
                                                                (5000, 6, 512)])  # fmt: skip
def test_every_setting_draws_the_defined_token(
    mode: Mode, seed: int, vocab: int, num_cases: int, max_threads: int
) -> None:
    cases = [random_case(100 * seed + number, vocab) for number in range(num_cases)]
    assert_right(cases, sample(emulated(mode, seed), cases, max_threads=max_threads))


@needs_compiler
@each_way
def test_each_setting_alone_draws_the_defined_token(mode: Mode, seed: int) -> None:
    history = [3, 3, 7, 3, 499, 7]
    cases = [
        Case(gaussian(seed, VOCAB), Draw(**alone, seed=seed + 2**40), history[:2], history[2:], min_tokens=9)
        for alone in ALONE
    ]
    assert_right(cases, sample(emulated(mode, seed), cases))


@needs_compiler
def test_draws_are_those_of_the_cpu() -> None:
    from tests.cuda.cpu.kernels import test_sample as cpu  # noqa: PLC0415 - compiles the CPU's kernels

    cases = [random_case(seed, cpu.VOCAB) for seed in range(1000, 1200)]
    on_cpu = cpu._sample([cpu.Case(**vars(case)) for case in cases])
    sampled = sample(emulated(), cases)
    assert sampled.tokens == on_cpu.tokens
    reported = [row for row, case in enumerate(cases) if case.logprobs >= 0]
    np.testing.assert_allclose(sampled.logprobs[reported], on_cpu.logprobs[reported], rtol=1e-5, atol=1e-5)


@needs_compiler
def test_a_draw_depends_on_its_row_alone() -> None:
    cases = [random_case(seed, VOCAB) for seed in range(16)]
    backend = emulated()
    together = sample(backend, cases)
    others = sample(backend, cases, rows=[*range(15, -1, -1)], max_threads=512)
    np.testing.assert_array_equal(together.tokens, others.tokens[::-1])
    for name in ("logprobs", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(together, name), getattr(others, name)[::-1])
    for row, case in enumerate(cases):
        alone = sample(backend, [case], max_threads=32)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.logprobs[0] == together.logprobs[row]


@needs_compiler
def test_padding_rows_are_skipped() -> None:
    cases = [random_case(seed, VOCAB) for seed in range(3)]
    rows = [-1, 2, 3, -(2**31), 0]
    sampled = sample(emulated("check"), cases, rows=rows)
    assert sampled.tokens == [UNTOUCHED, cases[2].expected, UNTOUCHED, UNTOUCHED, cases[0].expected]


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_are_banned_until_min_tokens_are_out(temperature: float) -> None:
    logits = np.full(VOCAB, -50, np.float32)
    logits[7], logits[8] = 50, 0
    draw = Draw(temperature=temperature, banned=(7,), logit_bias={7: 9.0})
    cases = [Case(logits, draw, [5] * 3, [5] * count, min_tokens=2) for count in (0, 1, 2, 3)]
    assert sample(emulated(), cases).tokens == [8, 8, 7, 7]


@needs_compiler
def test_full_lists_of_biases_and_bans_are_taken() -> None:
    vocab = 5000
    random = np.random.default_rng(3)
    biased, banned = random.permutation(vocab)[:MAX_BIAS].tolist(), random.permutation(vocab)[:MAX_BANNED].tolist()
    bias = dict(zip(biased, random.normal(size=MAX_BIAS).tolist(), strict=True))
    draws = [Draw(temperature=temperature, logit_bias=bias, banned=tuple(banned), seed=5) for temperature in (0.0, 1.0)]
    cases = [Case(gaussian(1, vocab), draw, min_tokens=1) for draw in draws]
    assert_right(cases, sample(emulated(), cases))


@needs_compiler
def test_equal_logits_are_cut_by_index() -> None:
    zeros = np.zeros(1000, np.float32)
    zeros[1] = -0.0
    greedy, *drawn = sample(
        emulated(),
        [Case(zeros, Draw(temperature=0))]
        + [Case(zeros, Draw(top_k=3, seed=seed)) for seed in range(30)]
        + [Case(zeros, Draw(top_p=0.003, seed=seed)) for seed in range(30)],
    ).tokens
    assert greedy == 0
    assert set(drawn[:30]) == set(drawn[30:]) == {0, 1, 2}


def flat_cases(vocab: int) -> Iterable[Case]:
    """Too many candidates for the list, at the edge equal ones."""
    for seed, logits in enumerate((gaussian(1, vocab, 0.01), np.round(gaussian(2, vocab)), np.zeros(vocab))):
        wide = logits.astype(np.float32)
        yield Case(wide, Draw(top_p=0.9, seed=seed))
        yield Case(wide, Draw(top_k=2 * vocab // 3, seed=seed))
        yield Case(wide, Draw(top_k=vocab // 3, top_p=0.5, seed=seed), logprobs=20)


@needs_compiler
@pytest.mark.parametrize(("mode", "vocab"), [("fast", 8001), ("check", 5000)])
def test_flat_rows_are_cut_exactly(mode: Mode, vocab: int) -> None:
    cases = list(flat_cases(vocab))
    assert_right(cases, sample(emulated(mode), cases))


@needs_compiler
def test_the_best_tokens_are_found_though_few_threads_own_them() -> None:
    vocab = 16_384  # the best fifth of every 128 tokens: 20 of 32 threads own 2,560 of the best
    logits = gaussian(0, vocab) + 100 * (np.arange(vocab) // 4 % 32 < 20)
    cases = [Case(logits.astype(np.float32), Draw(top_k=20, seed=4), logprobs=20)]
    assert_right(cases, sample(emulated(), cases, max_threads=32))


def arrival(seed: int, token: int) -> float:
    """Of a token of weight 1 at position 0."""
    return -math.log(reference.uniform(seed, 0, token))


@needs_compiler
def test_races_too_close_for_fp32_are_decided() -> None:
    cases = []
    for seed in range(120):
        first, second = 41, (42, 400)[seed % 2]  # of one thread, and of two
        logits = np.full(VOCAB, -30, np.float32)
        logits[first] = 1 + np.random.default_rng(seed).random()
        logits[second] = logits[first] + math.log(arrival(seed, second) / arrival(seed, first))
        cases.append(Case(logits, Draw(seed=seed)))
    expected = [case.expected for case in cases]
    assert {41, 42, 400} == set(expected)
    assert sample(emulated(), cases, max_threads=32).tokens == expected


@needs_compiler
@each_way
def test_numbers_that_are_none_draw_some_token(mode: Mode, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [gaussian(number, VOCAB) for number in range(6)]
    rows[0][:] = np.nan
    rows[1][:] = -np.inf
    rows[2][:] = np.inf
    rows[3][random.integers(0, VOCAB, 100)] = np.nan
    rows[4][[5, 300]] = np.inf
    rows[5][random.integers(0, VOCAB, 300)] = -np.inf
    draws = [Draw(temperature=0), Draw(), Draw(top_k=20), Draw(top_p=0.5, min_p=0.1), Draw(top_k=9, top_p=0.9)]
    cases = [Case(row, draw, [1, 2], [3], logprobs=5) for row in rows for draw in draws]
    tokens = np.array(sample(emulated(mode, seed), cases).tokens).reshape(6, -1)
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    assert (tokens[:3, 0] == 0).all()
    assert not np.isnan(rows[3][tokens[3]]).any()
    assert np.isin(tokens[4], [5, 300]).all()
    assert np.isfinite(rows[5][tokens[5]]).all()


@needs_compiler
def test_draws_without_filters_follow_the_softmax() -> None:
    odds = np.array([0.5, 0.25, 0.15, 0.1])
    logits = np.log(odds).astype(np.float32)
    drawn = sample(emulated(), [Case(logits, Draw(seed=seed)) for seed in range(3000)]).tokens
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 3000, odds, atol=0.03)


@needs_compiler
def test_philox_gives_its_published_words() -> None:
    code = (
        f'#include "{KERNELS / "philox.cuh"}"'
        """
    extern "C" __global__ void words(u32* out, u64 key, u32 a, u32 b, u32 c, u32 d) {
        const PhiloxWords words = philox(key, a, b, c, d);
        for (i32 i = 0; i < 4; ++i) out[i] = words.word[i];
    }"""
    )
    module = RawModule(code=code, settings=Settings(mode="check"))
    ones = 0xFFFFFFFF
    known = [  # Random123's kat_vectors
        (0, [0] * 4, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, [ones] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (0x299F31D0A4093822, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
         [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ]  # fmt: skip
    for key, counter, words in known:
        out = DeviceArray.empty(4, np.uint32)
        module.get_function("words")((1,), (1,), (out, np.uint64(key), *map(np.uint32, counter)))
        assert out.numpy().tolist() == words


@needs_compiler
def test_a_slot_draws_by_its_latest_settings() -> None:
    cases = [Case(gaussian(1, VOCAB), Draw(temperature=0)) for _ in range(2)]
    backend = emulated()
    sampler = Sampler(backend, VOCAB, 2)
    for token in range(9):
        sampler.tables.start(1, SlotSettings(temperature=0, bias={token: 99.0}, logprobs=token))
    sampler.tables.start(0, cases[0].settings)
    tokens, out = backend.zeros((2, 4), torch.int32), backend.zeros((2,), torch.int32)
    reports = backend.zeros((2,), torch.float32), backend.zeros((2, MAX_ALTERNATIVES), torch.int32)
    top_logprobs = backend.zeros((2, MAX_ALTERNATIVES), torch.float32)
    logits = backend.zeros((2, VOCAB), torch.float32)
    backend.copy(logits, torch.from_numpy(np.stack([case.logits for case in cases])))
    slots, positions = backend.zeros((2,), torch.int32), backend.zeros((2,), torch.int32)
    backend.copy(slots, torch.tensor([1, 0], dtype=torch.int32))
    sampler(logits, slots, positions, tokens, out, *reports, top_logprobs)
    backend.synchronize()
    assert out.tolist() == [8, cases[0].expected]


def test_settings_that_do_not_fit_are_refused() -> None:
    tables = SamplerTables(emulated(), 5000, 1)
    for settings in (
        SlotSettings(bias=dict.fromkeys(range(MAX_BIAS + 1), 1.0)),
        SlotSettings(banned=range(MAX_BANNED + 1)),
    ):
        with pytest.raises(ValueError, match=r"the limits: 1024, 192"):
            tables.start(0, settings)


def test_tokens_outside_the_vocabulary_are_ignored() -> None:
    tables = SamplerTables(emulated(), 10, 1)
    tables.start(0, SlotSettings(bias={10: 1.0, 9: 2.0}, banned=[11, 3, 3, -1]))


@pytest.mark.parametrize("vocab_size", [0, (1 << 19) + 1])
def test_vocabularies_that_the_kernel_cannot_take_are_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"vocab_size is {vocab_size}"):
        Sampler(emulated(), vocab_size, 1)
