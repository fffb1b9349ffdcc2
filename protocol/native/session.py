"""The native dialect of `/v1/stream`, sans I/O: one session for one connection; `protocol.wire` has its messages.

A `failed` with an id is terminal for that id, with two exceptions that answer the frame alone and leave a running
request untouched: `duplicate_id` (the name is taken) and `unknown_id`. Any other bad frame about a running request ends
that request: the client gets the `failed`, the engine a Cancel, and nothing more is said of the id. A cancel or credit
for an id that has ended is late, not wrong, and is ignored; `unknown_id` is for names never used on this connection (or
so long ago that they are forgotten, see `protocol.session.LiveIds`). Of two equal keys in one map the last counts.
"""

from typing import get_args

from msgspec.structs import replace

from protocol.bounds import MAX_NAME_LENGTH
from protocol.errors import RequestError, invalid
from protocol.session import Encoding, Frame, Session, encode, read_map
from protocol.validation import check_generate, read_fields, shown
from protocol.wire import (
    Accepted,
    Cancel,
    Credit,
    Draining,
    Event,
    Generate,
    Hello,
    Ping,
    Pong,
    Resume,
    SessionCommand,
    SessionEvent,
    StreamCommand,
    Tokens,
    failed_event,
    finite_logprob,
)

_COMMANDS: dict[str, type[StreamCommand]] = {str(kind.__struct_config__.tag): kind for kind in get_args(StreamCommand)}
_ANSWERS_FRAME = ("duplicate_id", "unknown_id")
"""Codes that say something about a frame and nothing about the request of that name."""


class NativeSession(Session):
    """State of one `/v1/stream` connection."""

    def __init__(self, encoding: Encoding, *, hello: Hello) -> None:
        super().__init__()
        self._encoding: Encoding = encoding
        self._models = hello.models
        self._send(hello)

    def receive_frame(self, frame: Frame) -> SessionCommand | None:
        """Take one complete WebSocket message; a bad one becomes an outgoing `failed`."""
        name: str | None = None
        try:
            fields = read_map(frame, self._encoding)
            given = fields.get("id")
            name = given if isinstance(given, str) and 1 <= len(given) <= MAX_NAME_LENGTH else None
            return self._take(self._read_command(fields, name))
        except RequestError as error:
            return self._refuse(name, error)

    def send_event(self, event: SessionEvent) -> None:
        """Take one event of a live request; events of others are dropped."""
        if isinstance(event, Tokens):
            if self._ids.is_heard(event.id):
                self._frames.append(encode(_finite(event) if event.logprobs else event, self._encoding))
            return
        name = None if isinstance(event, Draining) else event.id
        if name is None or self._ids.is_heard(name):
            self._send(event)
        if name is not None and not isinstance(event, Accepted) and self._ids.is_live(name):
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

    def _take(self, command: StreamCommand) -> SessionCommand | None:
        match command:
            case Ping(nonce=nonce):
                self._send(Pong(nonce=nonce))
                return None
            case Generate(id=name) | Resume(id=name):
                self._ids.begin(name)
            case Cancel(id=name) | Credit(id=name) if not self._ids.is_heard(name):
                if not self._ids.was_used(name):
                    raise RequestError("unknown_id", f"id {shown(name)} was never used on this connection", param="id")
                return None
        return command

    def _refuse(self, name: str | None, error: RequestError) -> SessionCommand | None:
        """Answer a bad frame; one about a running request ends that, which has to be cancelled."""
        command: Cancel | None = None
        if name is not None and error.code not in _ANSWERS_FRAME:
            if self._ids.is_heard(name):
                self._ids.mute(name)
                command = Cancel(id=name)
            elif self._ids.is_live(name):
                name = None  # its last word is out: it is not named again
            else:
                self._ids.end(name)
        self._refusals.append(error.code)
        self._send(failed_event(name, error))
        return command

    def _send(self, event: Event) -> None:
        self._frames.append(encode(event, self._encoding))


def _read_kind(fields: dict[str, object]) -> type[StreamCommand]:
    kind = fields.get("type")
    if kind is None:
        raise invalid("type", "type is missing; it is required")
    known = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise invalid("type", f"type is {shown(kind)}; it must be one of {', '.join(_COMMANDS)}")
    return known


def _finite(event: Tokens) -> Tokens:
    """The same event with log-probabilities that every encoding can carry."""
    return replace(event, logprobs=[finite_logprob(one) for one in event.logprobs or []])
