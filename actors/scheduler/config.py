"""What the scheduler is told once, at its start. Page counts and sizes are not here: the workers report them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import PositiveCount

PositiveSeconds = Annotated[float, Meta(gt=0)]


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolved flags; `python -m actors.node --help` says what each means to a user."""

    max_running: PositiveCount = 256
    """Row slots of each group."""
    step_tokens: PositiveCount = 512
    """Most tokens in a step. Room for one page of prefill is kept in it, so it also bounds the rows of a step.

    On the CPU so many of prefill take about half a second: more would hold up everybody's next token.
    """
    max_waiting: PositiveCount = 1024
    max_waiting_tokens: PositiveCount = 1_000_000
    batching: Literal["continuous", "static"] = "continuous"
    prefix_cache: bool = True
    chunked_prefill: bool = True
    overlap: bool = True
    resume_ttl_s: PositiveSeconds = 60.0
    """How long a request may be without credit before it fails."""
    aging_s: PositiveSeconds = 30.0
    """Waiting this long is worth one step of priority."""
    step_deadline_s: PositiveSeconds = 60.0
    """A step in flight longer than this makes the scheduler report itself unhealthy."""
    peer_timeout_s: PositiveSeconds = 10.0
    """How long a rank may take to answer a step beyond the first rank that has; then its group has failed."""
    check_invariants: bool = False
    """Recount all pages after each step (debug and tests; slow)."""
