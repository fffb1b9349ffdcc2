"""Everything actors say to each other. Commands are imperative, events past tense; one inbox union for each actor.

The wire to clients is `protocol.wire`; these never leave the machine. A request is named here by a 63-bit number that
the ingress makes and never uses again.
"""

from typing import Literal

from msgspec import Struct

from protocol.bounds import Count, PositiveCount, Sequence63, TokenId
from protocol.errors import ErrorCode
from protocol.sampling import SamplingParams
from protocol.step import StepPlan, StepResult, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]


class Message(Struct, frozen=True, tag=True):
    """Base of all: tagged by class name, so a union of them decodes to the right one."""


class Slo(Struct, frozen=True):
    """Latency targets of one request, milliseconds; None is no target."""

    ttft_ms: PositiveCount | None = None
    tpot_ms: PositiveCount | None = None


class Usage(Struct, frozen=True):
    """Token counts of one request; `cached_tokens` of the prompt came out of the prefix cache."""

    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0


class Timing(Struct, frozen=True):
    """Milliseconds, measured by the scheduler from submission; None where the request never got that far."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    total_ms: float | None = None


# ---- ingress -> scheduler -------------------------------------------------------------------------------------------


class Submit(Message, frozen=True, kw_only=True):
    """Serve a request. Answered by RequestAccepted and one RequestFinished, or by one RequestFailed."""

    request: Sequence63
    prompt_tokens: list[TokenId]
    output_tokens: list[TokenId] = []
    """Already emitted (resume): generation goes on after them; they count towards max_tokens."""
    sampling: SamplingParams
    tenant: str = ""
    """Whose fairness counter it runs on (one for each API key)."""
    priority: int = 0
    cache_salt: str = ""
    credit: Count = 4096
    """Output tokens that may be emitted before more credit is granted."""
    slo: Slo | None = None
    warm: bool = False
    """Compute the prompt into the prefix cache, emit nothing, finish with `length`."""


class CancelRequest(Message, frozen=True):
    """Stop; answered by RequestFinished('cancelled') unless the request has ended already. Unknown ones are ignored."""

    request: Sequence63


class StopRequest(Message, frozen=True):
    """The ingress found a stop string; answered by RequestFinished('stop') unless it has ended already."""

    request: Sequence63


class GrantCredit(Message, frozen=True):
    """The client can take `tokens` more output tokens."""

    request: Sequence63
    tokens: PositiveCount


# ---- scheduler -> ingress -------------------------------------------------------------------------------------------


class EngineReady(Message, frozen=True):
    """All groups are loaded; from now on requests are served. Sent again when a limit changes."""

    max_model_len: PositiveCount
    """The least of the model's limit, the flag's and what the smallest pool holds."""


class RequestAccepted(Message, frozen=True):
    """The request is queued; it will end in exactly one terminal event."""

    request: Sequence63


class TokenDelta(Struct, frozen=True, array_like=True, gc=False):
    """Output tokens of one request, index of the first among its outputs."""

    request: Sequence63
    index: Count
    tokens: list[TokenId]
    logprobs: list[TokenLogprob] = []
    """One for each token if asked for, else empty."""


class TokensGenerated(Message, frozen=True):
    """All tokens of one step, for all streams."""

    deltas: list[TokenDelta]


class RequestFinished(Message, frozen=True):
    """Terminal. `stop_token` is the end-of-sequence or stop id that ended it (it was emitted as the last token)."""

    request: Sequence63
    reason: FinishReason
    usage: Usage
    timing: Timing
    stop_token: TokenId | None = None


class RequestFailed(Message, frozen=True):
    """Terminal."""

    request: Sequence63
    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_ms: Count | None = None


class SchedulerFailed(Message, frozen=True):
    """Told by the node: the scheduler is gone. Every live request ends in `failed` with code `internal`."""

    message: str


# ---- scheduler <-> worker -------------------------------------------------------------------------------------------


class ExecuteStep(Message, frozen=True):
    """Run one step; plans of one epoch are executed in the order they arrive."""

    plan: StepPlan


class StepCompleted(Message, frozen=True):
    """One rank's answer to one plan."""

    worker: Count
    result: StepResult


class MemoryExported(Message, frozen=True):
    """A rank of a group of several has loaded its shard; under `handle` the others find its peer memory."""

    worker: Count
    epoch: Count
    handle: bytes


class OpenPeers(Message, frozen=True):
    """Every rank of the group has exported: open the others' memory, then be ready."""

    epoch: Count
    handles: list[bytes]
    """In rank order, the receiver's own included."""


class WorkerReady(Message, frozen=True, kw_only=True):
    """A worker has loaded its shard, holds an empty KV pool, and has met the other ranks of its group."""

    worker: Count
    epoch: Count
    num_pages: PositiveCount
    page_size: PositiveCount


class WorkerFailed(Message, frozen=True):
    """The worker cannot go on (its process ends after this). `message` is one line, fit for a log."""

    worker: Count
    epoch: Count
    message: str


# ---- node -> ingress: the end ---------------------------------------------------------------------------------------


class Drain(Message, frozen=True):
    """Take no new requests; running ones go on until done or `deadline_ms` from now is over."""

    deadline_ms: Count


class Drained(Message, frozen=True):
    """Every request has ended and every connection is closed."""


# ---- control, for every actor ---------------------------------------------------------------------------------------


class GetHealth(Message, frozen=True):
    """Ask: is this actor alive and moving? Answered by Health."""


class Health(Message, frozen=True):
    """`ok` is: idle with everything answering, or advancing."""

    ok: bool
    detail: str = ""
    num_running: Count = 0
    num_waiting: Count = 0


class CollectMetrics(Message, frozen=True):
    """Ask: answered by MetricsSnapshot."""


class Sample(Struct, frozen=True, array_like=True):
    """One line of Prometheus text: `name{labels} value`."""

    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(Struct, frozen=True, array_like=True):
    """One Prometheus family; samples of one family from several actors are merged by name."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: list[Sample]


class MetricsSnapshot(Message, frozen=True):
    """All families of one actor."""

    families: list[MetricFamily]


SchedulerInbox = (
    Submit
    | CancelRequest
    | StopRequest
    | GrantCredit
    | StepCompleted
    | MemoryExported
    | WorkerReady
    | WorkerFailed
    | GetHealth
    | CollectMetrics
)
IngressInbox = (
    EngineReady
    | RequestAccepted
    | TokensGenerated
    | RequestFinished
    | RequestFailed
    | SchedulerFailed
    | Drain
    | GetHealth
    | CollectMetrics
)
WorkerInbox = ExecuteStep | OpenPeers | GetHealth | CollectMetrics
