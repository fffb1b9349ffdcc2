"""One step of one group, as data: what the scheduler asks (`StepPlan`) and what a device answers (`StepResult`).

A worker keeps a table of *row slots* (`0 <= slot < max_running`). A slot holds one request's tokens and page table:

    token range of a slot        who writes it
    [0, len(RowStart.tokens))    RowStart: prompt, then output tokens known when the request was (re)admitted
    [len(RowStart.tokens), …)    the device itself, when it samples: position start + count of the sampling row

So a decode row is `StepRow(slot, start=n, count=1)` whether or not the scheduler has seen token n yet: the placeholder
of the overlapped schedule is filled on the device. Steps are executed in order; nothing here has a clock.

`gc=False`: made by the hundred in every step and never part of a cycle, so the collector need not look at them.
"""

from msgspec import Struct

from protocol.bounds import Count, Sequence63, TokenId
from protocol.sampling import SamplingParams

MAX_IN_FLIGHT = 2
"""Plans of one group that are not answered: the one that runs and the one behind it."""


class RowStart(Struct, frozen=True, array_like=True):
    """A request takes a slot: clears whatever the slot held (tokens, page table, penalty counts)."""

    slot: Count
    request: Sequence63
    incarnation: Count
    tokens: list[TokenId]
    """Prompt tokens, then output tokens (after preemption or resume)."""
    num_prompt_tokens: Count
    """Where output tokens begin: output penalties count from here; output index i sits at num_prompt_tokens + i."""
    sampling: SamplingParams
    """With `seed` set."""


class StepRow(Struct, frozen=True, array_like=True, gc=False):
    """Compute tokens [start, start + count) of a slot; KV goes to its page table at the same positions."""

    slot: Count
    start: Count
    count: Count
    """At least 1."""
    samples: bool
    """Sample the token at position start + count from the last row's logits, and store it in the slot."""
    new_pages: tuple[Count, ...] = ()
    """Appended to the slot's page table before the step."""


class StepPlan(Struct, frozen=True, array_like=True):
    """One forward pass over a mixed batch. `starts` are applied before `rows`; a row's slot has been started."""

    epoch: Count
    step: Sequence63
    starts: list[RowStart]
    rows: list[StepRow]

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(row.count for row in self.rows)


class TopLogprob(Struct, frozen=True, array_like=True):
    """One alternative; natural log of the probability under the unmodified, temperature-1 distribution."""

    token: TokenId
    logprob: float


class TokenLogprob(Struct, frozen=True, array_like=True):
    """The sampled token's log-probability and the `logprobs` most likely alternatives, best first."""

    token: TokenId
    logprob: float
    top: list[TopLogprob] = []


class SampledRow(Struct, frozen=True, array_like=True, gc=False):
    """The token sampled for one row with `samples` set. Stale answers are told apart by (request, incarnation)."""

    slot: Count
    request: Sequence63
    incarnation: Count
    token: TokenId
    logprob: TokenLogprob | None = None


class StepResult(Struct, frozen=True, array_like=True):
    """What one rank computed for one plan; every rank of a group answers the same rows."""

    epoch: Count
    step: Sequence63
    rows: list[SampledRow]
    duration_s: float = 0.0
    """Time the device spent on this step."""
    gap_s: float = 0.0
    """Time the device sat idle between the previous step and this one while this plan was not there yet."""
