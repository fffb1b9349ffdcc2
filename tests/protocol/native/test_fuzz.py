"""Whatever arrives, nothing escapes a session: answers decode, commands are well-typed, every id ends once."""

import json
import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import Timing, Usage
from protocol.native.client import decode_event
from protocol.session import Encoding, Frame
from protocol.wire import (
    Accepted,
    Cancel,
    Credit,
    Failed,
    Finished,
    Generate,
    Resume,
    SessionEvent,
    StreamCommand,
    StreamEvent,
    Tokens,
)
from tests.protocol.frames import greeted
from tests.protocol.kept import KeptSession
from tests.protocol.strategies import (
    KINDS,
    broken_messages,
    json_values,
    messages,
    msgpack_values,
    valid_messages,
)

json_frames = st.one_of(
    st.text(max_size=40),
    st.text(alphabet='{}[]",:\\u0123456789deE-+.ntrfals ', max_size=40),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False)),
    messages(json_values, st.integers(0, 9).map(str)).map(json.dumps),
    st.binary(max_size=10),
)
msgpack_frames = st.one_of(
    st.binary(max_size=40),
    msgpack_values.map(msgspec.msgpack.encode),
    messages(msgpack_values, st.integers(0, 9)).map(msgspec.msgpack.encode),
    st.builds(
        lambda frame, at, byte: frame[:at] + bytes([byte]) + frame[at + 1 :],
        messages(msgpack_values, st.integers(0, 9)).map(msgspec.msgpack.encode),
        st.integers(0, 60),
        st.integers(0, 255),
    ),
    st.text(max_size=10),
)
names = st.sampled_from(["a", "b"])
events = st.one_of(
    st.builds(Accepted, id=names, prompt_tokens=st.integers(0, 9)),
    st.builds(Tokens, id=names, index=st.integers(0, 9), count=st.integers(1, 9), text=st.text(max_size=5)),
    st.builds(
        lambda name, reason: Finished(id=name, reason=reason, usage=Usage(), timing=Timing()),
        names,
        st.sampled_from(["stop", "length", "cancelled"]),
    ),
    st.builds(lambda name: Failed(id=name, code="internal", message="m"), names),
)


@settings(deadline=None, max_examples=400)
@given(frames=st.lists(json_frames, max_size=6))
def test_any_json_frames_are_survived(frames: list[Frame]) -> None:
    check_frames("json", frames)


@settings(deadline=None, max_examples=400)
@given(frames=st.lists(msgpack_frames, max_size=6))
def test_any_msgpack_frames_are_survived(frames: list[Frame]) -> None:
    check_frames("msgpack", frames)


@settings(deadline=None, max_examples=300)
@given(
    steps=st.lists(st.one_of((valid_messages() | broken_messages()).map(json.dumps), events), min_size=8, max_size=30)
)
def test_every_id_gets_one_terminal_event_and_nothing_after_it(steps: list[Frame | SessionEvent]) -> None:
    session = greeted()
    open_ids: set[str] = set()
    for step in steps:
        if isinstance(step, str | bytes):
            session.receive_frame(step)
        else:
            session.send_event(step)
        begun = {one.id for one in session.take_commands() if isinstance(one, Generate | Resume)}
        assert not begun & open_ids
        open_ids |= begun
        for frame in session.take_frames():
            follow(decode_event(frame, "json"), open_ids)


def follow(event: StreamEvent | None, open_ids: set[str]) -> None:
    """Keep the set of ids that wait for their end as an observer of the wire would."""
    match event:
        case Accepted(id=name) | Tokens(id=name):
            assert name in open_ids
        case Finished(id=name):
            assert name in open_ids
            open_ids.remove(name)
        case Failed(id=str(name), code=code) if code not in ("duplicate_id", "unknown_id"):
            open_ids.discard(name)


def check_frames(encoding: Encoding, frames: list[Frame]) -> None:
    session = greeted(encoding)
    for frame in frames:
        session.receive_frame(frame)
        check_commands(session)
        for sent in session.take_frames():
            assert isinstance(sent, str) == (encoding == "json")
            assert decode_event(sent, encoding) is not None


def check_commands(session: KeptSession) -> None:
    for command in session.take_commands():
        assert msgspec.convert(msgspec.to_builtins(command), StreamCommand) == command
        if isinstance(command, Generate):
            assert sum(given is not None for given in (command.messages, command.prompt, command.prompt_tokens)) == 1
            check_numbers(msgspec.to_builtins(command))
            json.dumps(msgspec.to_builtins(command), ensure_ascii=False).encode()
        assert getattr(command, "id", "a")
        assert isinstance(command, Generate | Cancel | Credit | Resume) or type(command).__name__.lower() in KINDS


def check_numbers(value: Any) -> None:
    match value:
        case float():
            assert math.isfinite(value)
        case list():
            for item in value:
                check_numbers(item)
        case dict():
            for item in value.values():
                check_numbers(item)
