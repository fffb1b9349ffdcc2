"""What clients and the server say to each other on `/v1/stream`, as structs: one a message of the native dialect.

The Responses dialect is translated to and from these same structs by its session (`protocol.responses`), so a
connection handler knows one set of commands and one set of events. Both encodings (JSON text, msgpack binary) carry the
same maps, tagged by `type`. `python -m protocol.schema` prints fields and limits.
"""

import math
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from protocol.bounds import MAX_INT31, MAX_NAME_LENGTH, Count, PositiveCount, RequestName, Seed, Sequence63, TokenId
from protocol.errors import ErrorCode, RequestError
from protocol.messages import FinishReason, RequestFailed, Slo, Timing, Usage
from protocol.sampling import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    Bias,
    MinP,
    NumLogprobs,
    Penalty,
    RepetitionPenalty,
    Temperature,
    TopP,
)

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 4096
"""Characters: text that may yet become a stop string is held back, and searched again with every token."""

StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero: JSON has no infinity."""

PROTOCOL_VERSION = 1
JSON_SUBPROTOCOL = "tokenstage.v1.json"
MSGPACK_SUBPROTOCOL = "tokenstage.v1.msgpack"


class ChatMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str


class SloTargets(Slo, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Latency targets as a client sends them."""


# ---- client -> server -----------------------------------------------------------------------------------------------


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of what a client asks."""


class Generate(Command, frozen=True, kw_only=True, tag="generate"):
    """Generate after exactly one of `messages`, `prompt`, `prompt_tokens`. None: the served model's default."""

    id: RequestName
    model: str | None = None
    messages: list[ChatMessage] | None = None
    prompt: str | None = None
    prompt_tokens: list[TokenId] | None = None
    max_tokens: PositiveCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT31)] | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Seed | None = None
    stop: Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool = False
    min_tokens: Count = 0
    logprobs: NumLogprobs | None = None
    return_tokens: bool = False
    slo: SloTargets | None = None
    priority: Annotated[int, Meta(ge=-10, le=10)] = 0
    cache_salt: Annotated[str, Meta(max_length=256)] = ""
    resumable: bool = False
    credit: Count = 4096
    resume_tokens: list[TokenId] | None = None


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    """Stop a live request of this connection."""

    id: RequestName


class Credit(Command, frozen=True, kw_only=True, tag="credit"):
    """The client can take `tokens` more output tokens."""

    id: RequestName
    tokens: PositiveCount


class Resume(Command, frozen=True, kw_only=True, tag="resume"):
    """Pick up a resumable request; the client holds `after` output tokens and calls it `id` from now on."""

    id: RequestName
    resume_token: RequestName
    after: Count


class Ping(Command, frozen=True, kw_only=True, tag="ping"):
    """Answered by Pong with the same nonce."""

    nonce: Sequence63 | Annotated[str, Meta(max_length=MAX_NAME_LENGTH)] = 0


class Authenticate(Command, frozen=True, kw_only=True, tag="authenticate"):
    """For browsers, which cannot set a header: the first message when keys are configured."""

    key: Annotated[str, Meta(min_length=1, max_length=1024)]


class Warm(Struct, frozen=True):
    """Compute the prompt into the prefix cache and finish; only the Responses dialect (`generate: false`) asks this."""

    generate: Generate

    @property
    def id(self) -> str:
        """Of the request."""
        return self.generate.id


StreamCommand = Generate | Cancel | Credit | Resume | Ping | Authenticate
SessionCommand = Generate | Warm | Cancel | Credit | Resume | Authenticate
"""What a session hands to its connection; Ping is answered by the session itself."""


# ---- server -> client -----------------------------------------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of what the server says. A client ignores fields it does not know."""


class Hello(Event, frozen=True, kw_only=True, tag="hello"):
    """First frame of every connection."""

    protocol: int
    server: str
    models: list[str]
    max_model_len: int
    max_message_bytes: int
    authenticated: bool


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    """The request is queued and will end in exactly one Finished or Failed."""

    id: str
    prompt_tokens: Count
    resume_token: str | None = None


class Pong(Event, frozen=True, kw_only=True, tag="pong"):
    """Answer to Ping."""

    nonce: int | str


class Draining(Event, frozen=True, kw_only=True, tag="draining"):
    """The server is going away; running requests have this long."""

    deadline_ms: Count


class WireTopLogprob(Struct, frozen=True, kw_only=True):
    """One alternative token; `text` is what it decodes to alone, where that is known."""

    token: TokenId
    logprob: float
    text: str | UnsetType = UNSET


class WireLogprob(Struct, frozen=True, kw_only=True):
    """The sampled token's log-probability and the most likely alternatives."""

    token: TokenId
    logprob: float
    top: list[WireTopLogprob] = []
    text: str | UnsetType = UNSET


class Tokens(Event, frozen=True, kw_only=True, tag="tokens"):
    """`count` output tokens from `index` on and their text; `text` is never half a character."""

    id: str
    index: Count
    count: PositiveCount
    text: str
    tokens: list[TokenId] | None = None
    logprobs: list[WireLogprob] | None = None


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """Terminal. `stop` is the matched stop string, or the stop or end-of-sequence token id."""

    id: str
    reason: FinishReason
    usage: Usage
    timing: Timing
    stop: str | TokenId | None = None


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """Terminal for `id`; without `id` the frame could not be read and nothing was touched."""

    id: str | None = None
    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_ms: Count | None = None


StreamEvent = Hello | Accepted | Pong | Draining | Tokens | Finished | Failed
SessionEvent = Accepted | Draining | Tokens | Finished | Failed
"""What a connection hands to its session; Hello and Pong are the session's own."""


def failed_event(name: str | None, error: RequestError | RequestFailed) -> Failed:
    """The event that tells a client of `error`, about its request `name`."""
    return Failed(
        id=name, code=error.code, message=error.message, param=error.param, retry_after_ms=error.retry_after_ms
    )


def finite_logprob(logprob: WireLogprob) -> WireLogprob:
    """The same entry as every encoding can carry it: its infinities and NaNs replaced by LEAST_LOGPROB."""
    top = [replace(one, logprob=_finite(one.logprob)) for one in logprob.top]
    return replace(logprob, logprob=_finite(logprob.logprob), top=top)


def _finite(number: float) -> float:
    return number if math.isfinite(number) else LEAST_LOGPROB
