"""What devices do alike with the rows of plans: cut a step into passes, know who holds a slot, name what was drawn.

Numbers on the host only, whatever computes them. Read `cuda.gpu.slots` or `cuda.cpu.slots` for what a slot holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from protocol.step import RowStart, SampledRow, StepRow, TokenLogprob, TopLogprob

Array = TypeVar("Array")
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Holder:
    """Who holds a slot."""

    request: int
    incarnation: int
    num_logprobs: int | None


@dataclass(frozen=True)
class Drawn:
    """A token that a pass draws: for whom, and where among its results."""

    slot: int
    holder: Holder
    place: int


@dataclass(frozen=True)
class Results(Generic[Array]):
    """What a pass draws."""

    tokens: Array
    """[R] int32."""
    logprobs: Array
    """[R] float32."""
    top_ids: Array
    """[R, 20] int32."""
    top_logprobs: Array
    """[R, 20] float32."""


def passes(rows: Sequence[StepRow], max_tokens: int) -> Iterator[list[StepRow]]:
    """Cut a step into passes of at most `max_tokens` tokens, in order; a row samples in the pass of its last token."""
    taken: list[StepRow] = []
    room = max_tokens
    for row in rows:
        rest = row
        while rest.count > room:
            if room:
                taken.append(StepRow(rest.slot, rest.start, room, samples=False))
                rest = StepRow(rest.slot, rest.start + room, rest.count - room, rest.samples)
            yield taken
            taken, room = [], max_tokens
        taken.append(rest)
        room -= rest.count
    if taken:
        yield taken


class RowSlots:
    """Who holds each of `max_running` slots, as of the latest plan, and how many pages it has."""

    def __init__(self, max_running: int, page_size: int) -> None:
        self._page_size = page_size
        self._num_pages = [0] * max_running
        self._holders = [Holder(0, 0, None)] * max_running

    def start(self, row: RowStart) -> None:
        """Give a slot to a request; it has no pages yet."""
        self._num_pages[row.slot] = 0
        self._holders[row.slot] = Holder(row.request, row.incarnation, row.sampling.logprobs)

    def add_pages(self, row: StepRow) -> int:
        """How many pages a row's slot had before its new ones; ValueError if all do not hold what it computes."""
        held = self._num_pages[row.slot]
        total = self._num_pages[row.slot] = held + len(row.new_pages)
        if total * self._page_size < row.start + row.count:
            raise ValueError(f"slot {row.slot} computes up to token {row.start + row.count} with {total} pages")
        return held

    def holder(self, slot: int) -> Holder:
        """Who holds it."""
        return self._holders[slot]


def fill_tokens(
    token_slots: Ints, token_positions: Ints, segments: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
) -> int:
    """Lay out the tokens of (slots, starts, counts) one after another; how many there are."""
    slots, starts, counts = segments
    ends = np.cumsum(counts)
    total = int(ends[-1])
    token_slots[:total] = np.repeat(slots, counts)
    token_positions[:total] = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return total


def sampled_rows(results: Results[npt.NDArray[Any]], drawn: Sequence[Drawn]) -> list[SampledRow]:
    """What each drawn token's request is told."""
    tokens = results.tokens.tolist()
    return [
        SampledRow(one.slot, one.holder.request, one.holder.incarnation, tokens[one.place], _logprob(results, one))
        for one in drawn
    ]


def _logprob(results: Results[npt.NDArray[Any]], drawn: Drawn) -> TokenLogprob | None:
    wanted = drawn.holder.num_logprobs
    if wanted is None:
        return None
    place = drawn.place
    ids, values = results.top_ids[place, :wanted].tolist(), results.top_logprobs[place, :wanted].tolist()
    top = [TopLogprob(token, value) for token, value in zip(ids, values, strict=True)]
    return TokenLogprob(int(results.tokens[place]), float(results.logprobs[place]), top)
