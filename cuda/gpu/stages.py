"""Pinned host memory of passes on their way, used in turn: none is rewritten before the pass that it served is done.

A stage holds what one pass tells the device and, later, what it answers; it is free again once that has been read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cuda.gpu.batch import BatchArrays, BatchShape, Ints, Results
from cuda.gpu.slots import Holder
from cuda.kernels.backend import Backend, Event
from protocol.step import SampledRow, TokenLogprob, TopLogprob


@dataclass(frozen=True)
class Drawn:
    """A token that a pass draws: for whom, and where among its results."""

    slot: int
    holder: Holder
    place: int


class Stage:
    """Memory of one pass."""

    def __init__(self, backend: Backend, shape: BatchShape, max_start_tokens: int) -> None:
        self.words = backend.pinned((shape.begins[-1],), torch.int32)
        self.batch: BatchArrays[Ints] = BatchArrays.over(self.words.numpy(), shape)
        self.updates: torch.Tensor = BatchArrays.over(self.words, shape).updates
        self.result_words = backend.pinned((Results.num_words(shape.max_rows),), torch.int32)
        self.results: Results[Any] = Results.over(self.result_words.numpy(), shape.max_rows, np.float32)
        self.start_tokens = backend.pinned((max_start_tokens,), torch.int32)
        self.user: Pass | None = None


class Pass:
    """Work that uses a stage until `done`, and what it draws."""

    def __init__(self, stage: Stage, done: Event, drawn: Sequence[Drawn] = ()) -> None:
        self._stage = stage
        self._done = done
        self._drawn = drawn
        self._rows: list[SampledRow] | None = None
        stage.user = self

    def is_done(self) -> bool:
        """Whether `collect` would return at once. Raises what failed on the device."""
        return self._rows is not None or self._done.is_done()

    def collect(self) -> list[SampledRow]:
        """Wait, read what was drawn and let go of the stage. Raises what failed on the device."""
        if self._rows is None:
            self._done.wait()
            self._rows = _sampled_rows(self._stage.results, self._drawn)
            self._stage.user = None
        return self._rows


class Stages:
    """A ring of them."""

    def __init__(self, backend: Backend, shape: BatchShape, max_start_tokens: int, count: int) -> None:
        self._stages = [Stage(backend, shape, max_start_tokens) for _ in range(count)]
        self._num_taken = 0

    def take(self) -> Stage:
        """The stage that was used longest ago, once nobody uses it any more."""
        stage = self._stages[self._num_taken % len(self._stages)]
        self._num_taken += 1
        if stage.user is not None:
            stage.user.collect()
        return stage


def _sampled_rows(results: Results[Any], drawn: Sequence[Drawn]) -> list[SampledRow]:
    tokens = results.tokens.tolist()
    return [
        SampledRow(one.slot, one.holder.request, one.holder.incarnation, tokens[one.place], _logprob(results, one))
        for one in drawn
    ]


def _logprob(results: Results[Any], drawn: Drawn) -> TokenLogprob | None:
    wanted = drawn.holder.num_logprobs
    if wanted is None:
        return None
    place = drawn.place
    ids, values = results.top_ids[place, :wanted].tolist(), results.top_logprobs[place, :wanted].tolist()
    top = [TopLogprob(token, value) for token, value in zip(ids, values, strict=True)]
    return TokenLogprob(int(results.tokens[place]), float(results.logprobs[place]), top)
