"""One request as the scheduler sees it: its tokens, how far they are computed, and where it is in its life.

    token range               what is known of it
    [0, num_prompt)           the prompt
    [num_prompt, len(tokens)) output tokens: resumed, or sampled and seen here
    [len(tokens), length)     sampled by steps still in flight: only the device knows them
    [0, num_computed)         KV written by the steps planned so far (in flight ones included)

There are no phases: a row computes `length - num_computed` tokens, as many as the step has room for. Read `step` next.
"""

from dataclasses import dataclass, field
from enum import Enum

from actors.scheduler.pages import Node
from protocol.messages import Slo, Timing, Usage
from protocol.sampling import SamplingParams
from protocol.step import RowStart


@dataclass(slots=True, eq=False)
class Account:
    """One tenant. `served` is in tokens: prompt tokens computed and output tokens sampled."""

    tenant: str
    served: int = 0
    num_live: int = 0


class State(Enum):
    """Where a request is; it ends once."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    """Out of credit: outside batch and queue until more is granted."""
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Request:
    """Compared by identity; `id` is the ingress' number, `arrival` its place in the order of submission."""

    id: int
    arrival: int
    submitted_at: float
    tokens: list[int]
    num_prompt: int
    num_resumed: int
    """Output tokens that came with the request; they are never emitted again."""
    sampling: SamplingParams
    stop_ids: frozenset[int]
    max_length: int
    """Prompt and output tokens at which it ends with `length`."""
    credit_length: int
    """Prompt and output tokens that may exist before more credit is granted."""
    account: Account
    group: int = -1
    """Where it runs, for good."""
    priority: int = 0
    cache_salt: str = ""
    slo: Slo | None = None
    warm: bool = False

    state: State = State.NEW
    queued: bool = False
    """In the waiting queue (a waiting request that is not queued is held back)."""
    incarnation: int = 0
    """How often it has left a batch; what was planned before that is stale when it is answered."""
    slot: int = -1
    length: int = 0
    num_computed: int = 0
    stop_length: int = 0
    """No row is planned once `length` has reached it: the lesser of `max_length` and `credit_length`."""

    pages: list[int] = field(default_factory=list)
    capacity: int = 0
    """Token positions that `pages` holds."""
    num_pages_sent: int = 0
    """Pages that the device has been told of."""
    node: Node | None = None
    """Deepest page of its own in the prefix cache; None when it publishes no more."""
    num_published: int = 0
    """Depth of `node`."""
    match: tuple[Node, int] | None = None
    """Where the last look into the prefix cache ended, to go on from there."""

    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = -1.0
    """Before the first token: negative."""
    paused_at: float = 0.0
    num_cached: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""

    def __post_init__(self) -> None:
        self.length = len(self.tokens)
        self.grant(0)

    def grant(self, num_tokens: int) -> None:
        """So many more tokens may exist."""
        self.credit_length += num_tokens
        self.stop_length = min(self.max_length, self.credit_length)

    @property
    def num_output(self) -> int:
        """Output tokens known here, resumed ones included."""
        return len(self.tokens) - self.num_prompt

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the one to keep first: higher priority, then older."""
        return -self.priority, self.arrival

    def usage(self) -> Usage:
        """Token counts; resumed output tokens are output tokens."""
        return Usage(self.num_prompt, self.num_cached, self.num_output)

    def timing(self, now: float) -> Timing:
        """Milliseconds from submission; TPOT is the mean distance of output tokens after the first."""
        num_gaps = self.num_output - self.num_resumed - 1
        first = self.first_token_at
        return Timing(
            queue_ms=None if self.admitted_at is None else (self.admitted_at - self.submitted_at) * 1e3,
            ttft_ms=None if first is None else (first - self.submitted_at) * 1e3,
            tpot_ms=None if first is None or num_gaps < 1 else (self.last_token_at - first) * 1e3 / num_gaps,
            total_ms=(now - self.submitted_at) * 1e3,
        )

    def wants_page(self) -> bool:
        """Its next token does not fit into its pages."""
        return self.num_computed == self.capacity and self.length < self.stop_length

    def page_key(self, index: int, page_size: int) -> tuple[int, ...]:
        """Token ids of one whole page."""
        return tuple(self.tokens[index * page_size : (index + 1) * page_size])

    def row_start(self) -> RowStart:
        """What the device is told when the request takes its slot."""
        return RowStart(self.slot, self.id, self.incarnation, self.tokens.copy(), self.num_prompt, self.sampling)
