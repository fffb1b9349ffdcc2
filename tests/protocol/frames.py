"""Builders and readers of frames for the tests of both dialects."""

import json
from typing import Any

import msgspec

from protocol.messages import Timing, Usage
from protocol.native.session import NativeSession
from protocol.session import Encoding, Frame
from protocol.wire import Finished, Generate, Hello, SessionCommand
from tests.protocol.kept import KeptSession

HELLO = Hello(
    protocol=1,
    server="test",
    models=["demo"],
    max_model_len=2048,
    max_message_bytes=8 * 2**20,
    authenticated=True,
)


def greeted(encoding: Encoding = "json") -> KeptSession:
    """A session whose hello has been taken."""
    session = KeptSession(NativeSession(encoding, hello=HELLO))
    session.take_frames()
    return session


def generate(**fields: object) -> dict[str, Any]:
    """A valid generate message, changed by `fields`; None takes a field out."""
    message: dict[str, Any] = {"type": "generate", "id": "a", "prompt": "Hi", **fields}
    return {name: value for name, value in message.items() if value is not None}


def encode(message: object, encoding: Encoding = "json") -> Frame:
    """The frame of any value, by an encoder that the session does not use for JSON."""
    return json.dumps(message) if encoding == "json" else msgspec.msgpack.encode(message)


def decode(frame: Frame) -> dict[str, Any]:
    """The map in an outgoing frame, by a decoder that the session does not use for JSON."""
    value = json.loads(frame) if isinstance(frame, str) else msgspec.msgpack.decode(frame)
    assert isinstance(value, dict)
    return value


def answers(session: KeptSession, message: object, encoding: Encoding = "json") -> list[dict[str, Any]]:
    """What the session says to one message."""
    session.receive_frame(encode(message, encoding))
    return [decode(frame) for frame in session.take_frames()]


def refused(message: object, encoding: Encoding = "json") -> dict[str, Any]:
    """The one `failed` that a fresh session answers; nothing is commanded."""
    session = greeted(encoding)
    (failed,) = answers(session, message, encoding)
    assert failed["type"] == "failed"
    assert session.take_commands() == []
    return failed


def accepted(message: object, encoding: Encoding = "json") -> Generate:
    """The one Generate that a fresh session commands; nothing is answered."""
    session = greeted(encoding)
    assert answers(session, message, encoding) == []
    (command,) = session.take_commands()
    assert isinstance(command, Generate)
    return command


def started(*names: str) -> KeptSession:
    """A session in which requests of these names run."""
    session = greeted()
    for name in names:
        assert answers(session, generate(id=name)) == []
    session.take_commands()
    return session


def ids(commands: list[SessionCommand]) -> list[tuple[str, str]]:
    """Kind and id of each command."""
    return [(type(command).__name__, getattr(command, "id", "")) for command in commands]


def finish(name: str) -> Finished:
    """A terminal event."""
    return Finished(id=name, reason="stop", usage=Usage(1, 0, 1), timing=Timing())
