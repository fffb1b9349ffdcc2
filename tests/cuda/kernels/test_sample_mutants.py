from pathlib import Path

import numpy as np
import pytest

from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels import reference
from cuda.kernels.reference import Draw
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught
from tests.cuda.kernels.sampling import Case, sample

VOCAB = 701
WRONG = frozenset({WRONG_RESULT})
KERNEL, SELECT, PHILOX = "sample.cu", "select.cuh", "philox.cuh"


def barrier(source: str, text: str) -> Mutant:
    """The barrier that is explained so, removed."""
    return Mutant(source, f"__syncthreads();  // {text}", "", UNSEEN | WRONG)


MUTANTS = {
    "nine rounds of Philox": Mutant(PHILOX, "round < 10", "round < 9", WRONG),
    "a quad's words in another order": Mutant(KERNEL, "token % 4 < 2", "token % 4 >= 2", WRONG),
    "the seed's upper half left out": Mutant(PHILOX, "static_cast<u32>(key >> 32)", "0", WRONG),
    "the last token's position": Mutant(KERNEL, "quad, position, 0, 0)", "quad, position - 1, 0, 0)", WRONG),
    "bins not cleared for the next digit": Mutant(
        SELECT, "selection().low[bin] = selection().high[bin] = 0;", "if (prefix == 0) selection().low[bin] = 0;",
        UNSEEN | WRONG,
    ),
    "no barrier behind the clearing of bins": barrier(SELECT, "nothing is added to a bin before it is cleared"),
    "no barrier before bins are read": barrier(SELECT, "bins are read after everything was added"),
    "no barrier before the edge is read": barrier(
        SELECT, "the edge is read after one thread has written it; bins and `partial` were read by all"
    ),
    "no barrier before a list's length": barrier(SELECT, "nobody takes a number before the count is 0"),
    "no barrier between two lists": barrier(SELECT, "an earlier list has been read"),
    "no barrier between two maxima": barrier(SELECT, "the next use of `partial` overwrites nothing that is still read"),
    "no barrier behind the list": barrier(SELECT, "the list and its length are read when complete"),
    "no barrier behind the counts": barrier(KERNEL, "counts are read when complete"),
    "no barrier between bias and ban": barrier(KERNEL, "a ban follows the same token's bias"),
    "a digit of ten bits": Mutant(SELECT, "standing >> shift & (num_bins - 1)", "standing >> shift & 1023", WRONG),
    "the edge a bin too low": Mutant(
        SELECT, "while (before + bin_total(bin) < budget)", "while (before + bin_total(bin) <= budget)",
        OUT_OF_BOUNDS | UNSEEN | WRONG | {"undefined"},
    ),
    "the carry forgotten": Mutant(SELECT, "(low > ~before ? 1u : 0u)", "0u", UNSEEN | WRONG),
    "equal logits from the other end": Mutant(SELECT, "total - each < budget", "total - each <= budget", WRONG),
    "two zeros": Mutant(SELECT, "number_in(logit) + 0.0f", "number_in(logit)", WRONG),
    "the nucleus of all tokens, not of the top k": Mutant(
        KERNEL, "total_of(candidates, weigh)",
        "total_of({row, 0}, {weigh.top, weigh.inverse_temperature, 0, false})", UNSEEN | WRONG,
    ),
    "a ban too long": Mutant(KERNEL, "num_outputs < settings.min_tokens", "num_outputs <= settings.min_tokens", WRONG),
    "no ban": Mutant(KERNEL, "adjusted[settings.banned[i]] = minus_infinity();", ";", WRONG),
    "prompt tokens counted": Mutant(KERNEL, "if (i < prompt)", "if (i < prompt - 1)", WRONG),
    "log-probability of the adjusted logit": Mutant(KERNEL, "raw.logits[token]", "row.logits[token]", WRONG),
    "the race decided in fp32": Mutant(KERNEL, "(earliest)) * slack", "(earliest))", WRONG),
    "a barrier more, which is harmless": Mutant(KERNEL, "    Bests bests =", "    __syncthreads();\n    Bests bests ="),
    "more slack, which is harmless": Mutant(KERNEL, "slack = 1.0001f", "slack = 1.01f"),
}  # fmt: skip


def near(seed: int) -> Case:
    """Two tokens arrive at times that fp32 hardly tells apart."""
    logits = np.full(VOCAB, -30, np.float32)
    logits[40] = 1.5
    logits[400] = 1.5 + np.log(np.log(reference.uniform(seed, 0, 400)) / np.log(reference.uniform(seed, 0, 40)))
    return Case(logits, Draw(seed=seed))


def cases() -> list[Case]:
    random = np.random.default_rng(1)
    logits = (random.normal(size=VOCAB) * 2).astype(np.float32)
    steps = np.round(logits)
    steps[np.argmax(steps)] += 1
    flat = (logits / 100).astype(np.float32)
    zeros = np.zeros(VOCAB, np.float32)
    zeros[0] = -0.0
    tail = np.full(VOCAB, -8.33, np.float32)
    tail[350] = 0
    tie = np.where(np.isin(np.arange(VOCAB), [30, 31, 500]), 0, -30).astype(np.float32)
    history = [5, 5, 9, 700, 9, 9, 5]
    best = int(np.argmax(logits))
    return [
        Case(logits, Draw(seed=2**45 + 1), history[:3], history[3:]),
        Case(logits, Draw(seed=2, top_p=0.8), history[:3], history[3:]),
        Case(steps, Draw(seed=3, top_k=40, top_p=0.6), logprobs=7),
        Case(zeros, Draw(temperature=0)),
        Case(steps, Draw(temperature=0, logit_bias={best: 3.0}, banned=(1, 2, best)), [best], [], min_tokens=1),
        Case(logits, Draw(temperature=0, logit_bias={best: 3.0}, banned=(best,)), [best], [3], min_tokens=1),
        Case(logits, Draw(temperature=0, presence_penalty=9.0, frequency_penalty=0.1), [best], [4], logprobs=0),
        Case(logits, Draw(temperature=0, logit_bias={7: 20.0}, repetition_penalty=1.1), [best] * 3, [4, 4], logprobs=2),
        *(Case(flat, Draw(seed=seed, top_p=0.02)) for seed in range(4)),
        *(Case(flat, Draw(seed=seed, top_k=10, top_p=0.5)) for seed in range(4)),
        *(Case(tie, Draw(seed=seed, top_k=2)) for seed in range(6)),
        *(Case(tail, Draw(seed=seed, top_p=0.95)) for seed in (1, 5, 24, 33, 37)),  # not the best one wins
        *(near(seed) for seed in (15, 18, 28, 33)),
    ]


def run(settings: Settings, sources: Path) -> None:
    tried = cases()
    sampled = sample(EmulatedBackend(settings, sources=sources), tried)
    assert sampled.tokens == [case.expected for case in tried]
    for row, case in enumerate(tried):
        if case.logprobs >= 0:
            logprobs, best = reference.logprobs(case.logits, case.logprobs)
            np.testing.assert_allclose(sampled.logprobs[row], logprobs[sampled.tokens[row]], atol=1e-5)
            assert sampled.top_ids[row, : len(best)].tolist() == best.tolist()


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert_caught(MUTANTS[name], run)
