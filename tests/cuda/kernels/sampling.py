"""Runs the sampler's kernel over a handful of rows, for its tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cuda.kernels import reference
from cuda.kernels.backend import Backend
from cuda.kernels.reference import Draw
from cuda.kernels.sample import Sampler, SlotSettings
from tests.cuda.kernels.combinations import on_device

STRIDE = 64
UNTOUCHED = -7


@dataclass
class Case:
    """One slot to sample for; `min_tokens` bans `draw.banned`."""

    logits: Any
    draw: Draw
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    min_tokens: int = 0
    logprobs: int = -1

    @property
    def expected(self) -> int:
        is_banned = len(self.output) < self.min_tokens
        draw = self.draw if is_banned else Draw(**{**vars(self.draw), "banned": ()})
        return reference.sample(self.logits, self.prompt, self.output, draw)

    @property
    def settings(self) -> SlotSettings:
        draw = self.draw
        return SlotSettings(
            temperature=draw.temperature,
            top_k=draw.top_k,
            top_p=draw.top_p,
            min_p=draw.min_p,
            presence_penalty=draw.presence_penalty,
            frequency_penalty=draw.frequency_penalty,
            repetition_penalty=draw.repetition_penalty,
            seed=draw.seed,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            num_prompt_tokens=len(self.prompt),
            bias=draw.logit_bias,
            banned=draw.banned,
        )


@dataclass
class Sampled:
    """By row; `stored` is what the slots' tokens then hold at the rows' positions."""

    tokens: list[int]
    stored: list[int]
    logprobs: Any
    top_ids: Any
    top_logprobs: Any


def random_case(seed: int, vocab: int) -> Case:
    random = np.random.default_rng(seed)
    logits = (random.normal(size=vocab) * random.choice([0.1, 2, 8])).astype(np.float32)
    prompt = random.integers(0, vocab, random.integers(0, 12)).tolist()
    output = random.choice([*prompt, *random.integers(0, vocab, 5)], random.integers(0, 20)).tolist()
    biased = random.integers(0, vocab, random.integers(0, 4))
    draw = Draw(
        temperature=float(random.choice([0, 0.3, 1, 2])),
        top_k=int(random.choice([0, 1, 5, 50, vocab, 5000])),
        top_p=float(random.choice([1, 0.95, 0.5, 0.01])),
        min_p=float(random.choice([0, 0.01, 0.3])),
        repetition_penalty=float(random.choice([1, 1.3, 0.7])),
        frequency_penalty=float(random.choice([0, 0.5, -0.5])),
        presence_penalty=float(random.choice([0, 1])),
        logit_bias={int(token): float(random.normal() * 5) for token in biased},
        banned=tuple(random.integers(0, vocab, 2).tolist()) if vocab > 2 else (),
        seed=int(random.integers(0, 2**63)),
    )
    min_tokens = len(output) + int(random.integers(0, 2))
    return Case(logits, draw, prompt, output, min_tokens, int(random.integers(-1, 21)))


def sample(backend: Backend, cases: Sequence[Case], rows: Sequence[int] = (), max_threads: int = 64) -> Sampled:
    """Row r draws for cases[rows[r]], which is slot rows[r]; a number that is no case's marks padding."""
    vocab = len(cases[0].logits)
    rows = rows or range(len(cases))
    sampler = Sampler(backend, vocab, len(cases), max_threads=max_threads)
    pool = torch.full((len(cases), STRIDE), 2**31 - 1, dtype=torch.int32)
    for slot, case in enumerate(cases):
        sequence = case.prompt + case.output
        pool[slot, : len(sequence)] = torch.tensor(sequence)
        sampler.tables.start(slot, case.settings)
    lengths = [len(case.prompt) + len(case.output) for case in cases]
    logits = torch.from_numpy(np.stack([cases[row % len(cases)].logits for row in rows])).float()
    slots, positions = (
        torch.tensor(values, dtype=torch.int32) for values in (rows, [lengths[row % len(cases)] for row in rows])
    )
    tokens = on_device(backend, pool)
    out = [
        on_device(backend, torch.full((len(rows), width), UNTOUCHED, dtype=dtype))
        for width in (1, 20)
        for dtype in (torch.int32, torch.float32)
    ]
    sampler(on_device(backend, logits), on_device(backend, slots), on_device(backend, positions), tokens, *out)
    backend.synchronize()
    out = [x.cpu() for x in out]
    stored = [int(tokens[row, lengths[row]]) if 0 <= row < len(cases) else UNTOUCHED for row in rows]
    return Sampled(out[0][:, 0].tolist(), stored, *(x.numpy() for x in (out[1][:, 0], *out[2:])))
