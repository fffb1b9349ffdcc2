"""The client's half: a session reads what it sends, it reads what a session sends and skips what is new."""

import json

import msgspec
import pytest

from protocol.native.client import decode_event
from protocol.session import Encoding, encode
from protocol.wire import Cancel, ChatMessage, Credit, Generate, Hello, Ping, Pong, StreamCommand
from tests.protocol.frames import HELLO, greeted

ENCODINGS: list[Encoding] = ["json", "msgpack"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_session_reads_what_a_client_encodes(encoding: Encoding) -> None:
    command = Generate(
        id="a",
        messages=[ChatMessage(role="user", content="Hi 👋")],
        temperature=0.5,
        logit_bias={3: 1.5},
        stop=["\n"],
    )
    session = greeted(encoding)
    session.receive_frame(encode(command, encoding))
    assert session.take_frames() == []
    assert session.take_commands() == [command]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_commands_have_the_frame_kind_of_their_encoding(encoding: Encoding) -> None:
    commands: list[StreamCommand] = [Cancel(id="a"), Credit(id="a", tokens=1), Ping(nonce=3)]
    for command in commands:
        assert isinstance(encode(command, encoding), str) == (encoding == "json")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_client_reads_a_pong(encoding: Encoding) -> None:
    session = greeted(encoding)
    session.receive_frame(encode(Ping(nonce="n"), encoding))
    (frame,) = session.take_frames()
    assert decode_event(frame, encoding) == Pong(nonce="n")


def test_a_client_ignores_fields_it_does_not_know() -> None:
    fields = {"type": "pong", "nonce": 1, "colour": {"red": [1, 2]}}
    assert decode_event(json.dumps(fields), "json") == Pong(nonce=1)
    assert decode_event(msgspec.msgpack.encode(fields), "msgpack") == Pong(nonce=1)
    hello = {**msgspec.to_builtins(HELLO), "motd": "x"}
    assert isinstance(decode_event(json.dumps(hello), "json"), Hello)


def test_a_client_skips_event_types_it_does_not_know() -> None:
    fields = {"type": "applause", "volume": 11}
    assert decode_event(json.dumps(fields), "json") is None
    assert decode_event(msgspec.msgpack.encode(fields), "msgpack") is None


@pytest.mark.parametrize("frame", ["", "[]", '{"type":"pong"}', '{"type":"tokens","id":1}', '{"nonce":1}'])
def test_a_client_raises_on_what_no_server_sends(frame: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(frame, "json")


def test_a_text_frame_on_a_msgpack_connection_raises() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event('{"type":"pong","nonce":1}', "msgpack")
