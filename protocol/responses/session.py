"""One `/v1/responses` connection: requests wait in lanes, each running one is an `Answer`.

A lane (`stream_id`; none is the default lane) answers its frames first in first out, errors too: a client reads an
`error` on a lane as the end of what runs there. Lanes run side by side. At most MAX_WAITING frames wait in all lanes
together; further ones are refused at once. `response.cancel` acts at once, whatever waits.
"""

import re
from collections import deque
from collections.abc import Callable

import msgspec

from protocol.errors import RequestError, invalid
from protocol.responses.answer import Answer, DialectError, Event, dialect_param, error_event
from protocol.responses.create import Create, read_create, to_generate
from protocol.session import Frame, Session, read_map
from protocol.validation import shown
from protocol.wire import (
    Accepted,
    Cancel,
    ChatMessage,
    Draining,
    Failed,
    Finished,
    SessionCommand,
    SessionEvent,
    Tokens,
    Warm,
)

MAX_WAITING = 256
MAX_KEPT = 256
MAX_CHARACTERS = 8 * 2**20

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_encoder = msgspec.json.Encoder()


class ResponsesSession(Session):
    """State of one connection.

    `new_id(prefix)` makes a name never used before (`resp_…`, `msg_…`); `clock` is seconds since 1970.
    """

    def __init__(
        self,
        *,
        models: tuple[str, ...],
        max_model_len: int,
        new_id: Callable[[str], str],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._models = models
        self._max_model_len = max_model_len
        self._new_id = new_id
        self._clock = clock
        self._waiting: dict[str | None, deque[Create | RequestError]] = {}
        """One entry for each lane that runs something; what waits behind it."""
        self._answers: dict[str, Answer] = {}
        self._conversations = Conversations()

    def receive_frame(self, frame: Frame) -> SessionCommand | None:
        """Take one complete WebSocket message; a bad one becomes an outgoing `error`."""
        lane: str | None = None
        try:
            fields = read_map(frame, "json")
            if fields.get("type") == "response.cancel":
                return self._cancel(fields.get("response_id"))
            lane = _read_lane(fields)
            work: Create | RequestError = self._read(fields, lane)
        except RequestError as error:
            work = error
        return self._enqueue(lane, work)

    def send_event(self, event: SessionEvent) -> SessionCommand | None:
        """Take one event of a running response; others are dropped. An end lets the next of its lane begin."""
        answer = None if isinstance(event, Draining) else self._answers.get(event.id or "")
        if answer is None:
            return None
        match event:
            case Tokens():
                self._send_all(answer.tokens(event))
            case Accepted():
                self._send_all(answer.accepted())
            case Finished():
                self._send_all(answer.finished(event))
                self._conversations.remember(event.id, answer.turns())
            case Failed() if answer.is_accepted:
                self._send_all(answer.failed(event))
            case Failed(code=code, message=message, param=param, retry_after_ms=hint):
                error = RequestError(code, message, param=dialect_param(param), retry_after_ms=hint)
                self._send(error_event(error, answer.create.stream_id))
        return self._end(answer) if isinstance(event, Finished | Failed) else None

    def _read(self, fields: dict[str, object], lane: str | None) -> Create:
        kind = fields.get("type")
        if kind != "response.create":
            message = f"type is {shown(kind)}; it must be response.create or response.cancel"
            raise invalid("type", message)
        return read_create(fields, lane, self._models)

    def _enqueue(self, lane: str | None, work: Create | RequestError) -> SessionCommand | None:
        if lane not in self._waiting:
            self._waiting[lane] = deque([work])
            return self._run_next(lane)
        if sum(map(len, self._waiting.values())) < MAX_WAITING:
            self._waiting[lane].append(work)
        else:
            message = f"{MAX_WAITING} requests wait on this connection already, which is the limit"
            self._refuse(RequestError("overloaded", message, retry_after_ms=1000), lane)
        return None

    def _run_next(self, lane: str | None) -> SessionCommand | None:
        """Answer what waits on an idle lane, up to the first that runs."""
        waiting = self._waiting[lane]
        while waiting:
            work = waiting.popleft()
            try:
                if isinstance(work, RequestError):
                    raise work
                return self._begin(work)
            except RequestError as error:
                self._refuse(error, lane)
        del self._waiting[lane]
        return None

    def _begin(self, create: Create) -> SessionCommand:
        answer = Answer(create, self._new_id("resp"), self._new_id("msg"), self._clock)
        answer.history = self._recall(create.fields.previous_response_id)
        generate = to_generate(create, answer.id, answer.history, self._max_model_len)
        self._ids.begin(answer.id)
        self._answers[answer.id] = answer
        return Warm(generate=generate) if create.warms else generate

    def _recall(self, previous: str | None) -> tuple[ChatMessage, ...]:
        if previous is None:
            return ()
        turns = self._conversations.recall(previous)
        if turns is None:
            message = (
                f"previous_response_id is {shown(previous)}; this connection has no finished response of that name"
            )
            raise DialectError("previous_response_not_found", message, param="previous_response_id")
        return turns

    def _cancel(self, name: object) -> SessionCommand | None:
        """Obeyed and refused at once, whatever waits."""
        if not isinstance(name, str):
            self._refuse(invalid("response_id", f"response_id is {shown(name)}; it must be text"), None)
        elif self._ids.is_heard(name):
            return Cancel(id=name)
        elif not self._ids.was_used(name):
            message = f"response_id is {shown(name)}; this connection has no response of that name"
            self._refuse(RequestError("unknown_id", message, param="response_id"), None)
        return None

    def _refuse(self, error: RequestError, lane: str | None) -> None:
        self._refusals.append(error.code)
        self._send(error_event(error, lane))

    def _end(self, answer: Answer) -> SessionCommand | None:
        del self._answers[answer.id]
        self._ids.end(answer.id)
        return self._run_next(answer.create.stream_id)

    def _send_all(self, events: list[Event]) -> None:
        for event in events:
            self._send(event)

    def _send(self, event: Event) -> None:
        self._frames.append(_encoder.encode(event).decode())


def _read_lane(fields: dict[str, object]) -> str | None:
    lane = fields.get("stream_id")
    if lane is None:
        return None
    if not isinstance(lane, str) or not _STREAM_ID.fullmatch(lane):
        message = f"stream_id is {shown(lane)}; it must be 1 to 256 of A-Z, a-z, 0-9, underscore, hyphen and period"
        raise DialectError("invalid_stream_id", message, param="stream_id")
    return lane


class Conversations:
    """What `previous_response_id` refers to: turns by response id, without instructions (those are one response's).

    Memory is bounded by MAX_KEPT responses and MAX_CHARACTERS of text; the least recently used go first. The youngest
    is always kept: its size is bounded by the model's context.
    """

    def __init__(self) -> None:
        self._turns: dict[str, tuple[ChatMessage, ...]] = {}
        self._num_characters = 0

    def remember(self, response_id: str, turns: tuple[ChatMessage, ...]) -> None:
        """Keep all turns up to and with the answer `response_id`."""
        self._turns[response_id] = turns
        self._num_characters += _length(turns)
        while len(self._turns) > 1 and (len(self._turns) > MAX_KEPT or self._num_characters > MAX_CHARACTERS):
            self._num_characters -= _length(self._turns.pop(next(iter(self._turns))))

    def recall(self, response_id: str) -> tuple[ChatMessage, ...] | None:
        """The turns to go on from; None if it is unknown or forgotten."""
        turns = self._turns.pop(response_id, None)
        if turns is not None:
            self._turns[response_id] = turns
        return turns


def _length(turns: tuple[ChatMessage, ...]) -> int:
    return sum(len(turn.content) for turn in turns)
