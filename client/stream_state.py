"""What one stream has been sent, holds and has handed on: no I/O, no clock. `client.stream` waits around it.

    output tokens   0 ─────────── taken ─────────── held ─────────── granted
                      handed to the       in the buffer    the server may
                      caller                               still send

The buffer needs no other bound than the credit: the server never sends past `granted`, which moves only as the caller
takes, except for text that it had to hold back (MAX_STOP_LENGTH at most). It is also what makes a reconnection exact:
the server is asked to go on after `held`.
"""

import asyncio
from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from client.errors import APIConnectionError, APIError, status_error
from protocol.messages import FinishReason, Timing, Usage
from protocol.wire import (
    MAX_STOP_LENGTH,
    Accepted,
    Cancel,
    Credit,
    Failed,
    Finished,
    Generate,
    Resume,
    StreamCommand,
    Tokens,
    WireLogprob,
)

StreamItem = Accepted | Tokens | Finished
_RESUME_REFUSALS = ("resume_expired", "unknown_id")


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


class StreamState:
    """`can_continue` means token ids are kept, so that the stream survives its connection."""

    def __init__(self, generate: Generate, *, can_continue: bool) -> None:
        self._generate = generate
        self._can_continue = can_continue
        self._buffer: deque[StreamItem | APIError] = deque()
        self._tokens = list(generate.resume_tokens or [])
        self._num_given = self._num_held = self._num_taken = len(self._tokens)
        self._num_ungranted = 0
        self._num_since_opening = 0
        self._resume_token: str | None = None
        self._resuming = False
        self._texts: list[str] = []
        self._logprobs: list[WireLogprob] = []
        self._finished: Finished | None = None
        self._has_left = False
        self.id = generate.id
        self.arrived = asyncio.Event()
        """Set whenever there may be something new to take."""
        self.is_live = True
        """The server may still send events of it: no terminal one has arrived."""

    # ---- the connection's side --------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Someone still reads it: after a reconnection it goes on."""
        return self.is_live and not self._has_left

    def open(self) -> StreamCommand | None:
        """What to send on a new connection; None if nothing is left to ask for (then the stream has ended)."""
        self.is_live = True
        self._num_since_opening = 0
        if self._resume_token is not None:
            self._resuming = True
            return Resume(id=self.id, resume_token=self._resume_token, after=self._num_held)
        if self._num_held > self._num_given and not self._can_continue:
            self.fail(APIConnectionError(f"the connection was lost after {self._num_held} tokens; resumption is off"))
            return None
        self._num_ungranted = 0
        credit = max(self._generate.credit - (self._num_held - self._num_taken), 0)
        return replace(self._generate, credit=credit, resume_tokens=self._tokens or None)

    def receive(self, event: StreamItem | Failed) -> StreamCommand | None:
        """Take one event of this request; returns what must be sent in answer to it, if anything."""
        match event:
            case Failed(code=code) if self._resuming and code in _RESUME_REFUSALS:
                self._resuming, self._resume_token = False, None
                return self.open()
            case Failed():
                self._resume_token = None
                self.fail(status_error(event))
            case Tokens():
                if fault := self._misfit(event):
                    self.fail(APIConnectionError(fault))
                    return Cancel(id=self.id)
                self._num_held += event.count
                self._num_since_opening += event.count
                self._tokens += event.tokens or []
                self._put(event)
            case Accepted(resume_token=token):
                self._resume_token = token or self._resume_token
                self._put(event)
            case Finished():
                self.is_live = False
                self._put(event)
        return None

    def fail(self, error: APIError) -> None:
        """End with `error`, after what is in the buffer: nothing more will come."""
        self.is_live = False
        self._put(error.for_request(self.id))

    def _put(self, item: StreamItem | APIError) -> None:
        self._buffer.append(item)
        self.arrived.set()

    def _misfit(self, event: Tokens) -> str | None:
        """What is wrong with tokens that are not those due next, or are far more than was granted."""
        if event.index != self._num_held:
            return f"the server sent token {event.index} where {self._num_held} was due"
        if self._num_held + event.count - self._num_taken > self._generate.credit + MAX_STOP_LENGTH:
            return f"the server sent more than its credit of {self._generate.credit} tokens"
        if self._can_continue and len(event.tokens or []) != event.count:
            return f"the server counted {event.count} tokens and sent the ids of {len(event.tokens or [])}"
        return None

    # ---- the caller's side ------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Nothing waits to be taken."""
        return not self._buffer

    @property
    def is_over(self) -> bool:
        """The caller has taken the end, or has left."""
        return self._finished is not None or self._has_left

    @property
    def has_first_token(self) -> bool:
        """The caller has taken a token of this stream."""
        return self._num_taken > self._num_given

    @property
    def nothing_came(self) -> bool:
        """No token has arrived since the request was last (re)opened: asking again repeats nothing."""
        return self._num_since_opening == 0

    def take(self) -> StreamItem | APIError:
        """Hand the oldest event on; an error stays, so that whoever asks again gets the same answer."""
        item = self._buffer[0]
        if isinstance(item, APIError):
            return item
        self._buffer.popleft()
        if isinstance(item, Tokens):
            self._num_taken += item.count
            self._num_ungranted += item.count
            self._texts.append(item.text)
            self._logprobs += item.logprobs or []
        elif isinstance(item, Finished):
            self._finished = item
        return item

    def grant(self) -> Credit | None:
        """Credit to send now: what was taken, once it is half of the window."""
        if not self.is_live or 2 * self._num_ungranted < self._generate.credit:
            return None
        credit = Credit(id=self.id, tokens=self._num_ungranted)
        self._num_ungranted = 0
        return credit

    def drop_refusal(self) -> None:
        """Forget the error at hand: the request has been asked again."""
        self._buffer.popleft()

    def leave(self) -> None:
        """The caller reads no further."""
        self._has_left = self._finished is None

    def result(self) -> Result:
        """What the caller has taken so far."""
        done = self._finished
        return Result(
            request_id=self.id,
            text="".join(self._texts),
            tokens=self._tokens[: self._num_taken],
            num_tokens=self._num_taken,
            finish_reason=done.reason if done else "cancelled" if self._has_left else None,
            stop=done.stop if done else None,
            usage=done.usage if done else Usage(),
            timing=done.timing if done else Timing(),
            logprobs=list(self._logprobs),
        )
