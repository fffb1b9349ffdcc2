"""What one generation came to."""

from msgspec import Struct

from protocol.messages import FinishReason, Timing, Usage
from protocol.wire import WireLogprob


class Result(Struct, frozen=True, kw_only=True):
    """All that the caller has taken from the stream so far; complete once `finish_reason` is set.

    `tokens` are ids, there if `return_tokens` was asked or resumption is on; those given as `resume_tokens` come first
    and count in `num_tokens`. `logprobs` has one for each new token, if asked. `usage` and `timing` (milliseconds,
    measured by the server) come with the end. A stream that was left early has the reason `cancelled`.
    """

    request_id: str
    text: str = ""
    tokens: list[int] = []
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    usage: Usage = Usage()
    timing: Timing = Timing()
    logprobs: list[WireLogprob] = []
