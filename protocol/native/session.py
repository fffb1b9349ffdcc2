"""The own dialect of `/v1/stream`, sans I/O: one session for one connection; `protocol.wire` has its messages.

A `failed` with an id is terminal for that id, with two exceptions that answer the frame alone and leave a running
request untouched: `duplicate_id` (the name is taken) and `unknown_id`. Any other bad frame about a running request ends
that request: the client gets the `failed`, the engine a Cancel, and nothing more is said of the id. A cancel or credit
for an id that has ended is late, not wrong, and is ignored; `unknown_id` is for names never used on this connection (or
so long ago that they are forgotten, see `protocol.session`). Of two equal keys in one map the last counts.
"""

import msgspec
from msgspec.structs import replace

from protocol.errors import RequestError
from protocol.session import MAX_LIVE, Encoding, Frame, LiveIds, Session, read_map
from protocol.validation import check_generate, read_fields, shown
from protocol.wire import (
    Accepted,
    Authenticate,
    Cancel,
    Credit,
    Draining,
    Event,
    Failed,
    Generate,
    Hello,
    Ping,
    Pong,
    Resume,
    SessionEvent,
    StreamCommand,
    Tokens,
    finite_logprob,
)

_COMMANDS: dict[str, type[Generate | Cancel | Credit | Resume | Ping | Authenticate]] = {
    "generate": Generate,
    "cancel": Cancel,
    "credit": Credit,
    "resume": Resume,
    "ping": Ping,
    "authenticate": Authenticate,
}
_ANSWERS_FRAME = ("duplicate_id", "unknown_id")
"""Codes that say something about a frame and nothing about the request of that name."""

_JSON = msgspec.json.Encoder()
_MSGPACK = msgspec.msgpack.Encoder()


class NativeSession(Session):
    """State of one `/v1/stream` connection."""

    def __init__(self, encoding: Encoding, *, hello: Hello) -> None:
        super().__init__()
        self._encoding: Encoding = encoding
        self._models = hello.models
        self._ids = LiveIds()
        self._send(hello)

    def receive_frame(self, frame: Frame) -> None:
        """Take one complete WebSocket message; a bad one becomes an outgoing `failed`."""
        name: str | None = None
        try:
            fields = read_map(frame, self._encoding)
            name = _read_name(fields)
            self._take(self._read_command(fields, name))
        except RequestError as error:
            self._refuse(name, error)

    def send_event(self, event: SessionEvent) -> None:
        """Take one event of a live request; events of others are dropped."""
        if isinstance(event, Tokens):
            if self._ids.is_heard(event.id):
                self._send(_finite(event) if event.logprobs else event)
            return
        name = None if isinstance(event, Draining) else event.id
        if name is None:
            self._send(event)
            return
        if not self._ids.is_live(name):
            return
        if self._ids.is_heard(name):
            self._send(event)
        if not isinstance(event, Accepted):
            self._ids.end(name)

    def _read_command(self, fields: dict[str, object], name: str | None) -> StreamCommand:
        """Turn a map into its command; RequestError names what is wrong with it."""
        kind = _read_kind(fields)
        if kind in (Generate, Resume) and name is not None and self._ids.is_live(name):
            raise RequestError("duplicate_id", f"id {shown(name)} is still running on this connection", param="id")
        command: StreamCommand = read_fields(fields, kind, str_keys=self._encoding == "json")
        if isinstance(command, Generate):
            check_generate(command, self._models)
        return command

    def _take(self, command: StreamCommand) -> None:
        match command:
            case Ping(nonce=nonce):
                self._send(Pong(nonce=nonce))
            case Authenticate():
                self._commands.append(command)
            case Generate(id=name) | Resume(id=name):
                if self._ids.is_full:
                    message = f"this connection has {MAX_LIVE:,} requests running, which is the limit"
                    raise RequestError("overloaded", message, retry_after_ms=1000)
                self._ids.begin(name)
                self._commands.append(command)
            case Cancel(id=name) | Credit(id=name):
                if self._ids.is_heard(name):
                    self._commands.append(command)
                elif not self._ids.was_used(name):
                    raise RequestError("unknown_id", f"id {shown(name)} was never used on this connection", param="id")

    def _refuse(self, name: str | None, error: RequestError) -> None:
        if name is not None and error.code not in _ANSWERS_FRAME:
            name = self._end_refused(name)
        self._refusals.append(error.code)
        self._send(
            Failed(
                id=name,
                code=error.code,
                message=error.message,
                param=error.param,
                retry_after_ms=error.retry_after_ms,
            )
        )

    def _end_refused(self, name: str) -> str | None:
        """Make the coming `failed` the last word about `name`; None if its last word is out and it may not be named."""
        if self._ids.is_heard(name):
            self._ids.mute(name)
            self._commands.append(Cancel(id=name))
            return name
        if self._ids.is_live(name):
            return None
        self._ids.end(name)
        return name

    def _send(self, event: Event) -> None:
        self._frames.append(_JSON.encode(event).decode() if self._encoding == "json" else _MSGPACK.encode(event))


def _read_name(fields: dict[str, object]) -> str | None:
    """The id that an answer can carry, whatever else is wrong with the frame."""
    name = fields.get("id")
    return name if isinstance(name, str) and 1 <= len(name) <= 128 else None


def _read_kind(fields: dict[str, object]) -> type[Generate | Cancel | Credit | Resume | Ping | Authenticate]:
    kind = fields.get("type")
    if kind is None:
        raise RequestError("invalid_request", "type is missing; it is required", param="type")
    known = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        message = f"type is {shown(kind)}; it must be one of {', '.join(_COMMANDS)}"
        raise RequestError("invalid_request", message, param="type")
    return known


def _finite(event: Tokens) -> Tokens:
    """The same event with log-probabilities that every encoding can carry."""
    return replace(event, logprobs=[finite_logprob(one) for one in event.logprobs or []])
