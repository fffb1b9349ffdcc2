"""What both dialects share: frames of any bytes, and the bookkeeping of ids."""

import msgspec
import pytest

from protocol.session import MAX_ENDED, Encoding, Frame, LiveIds
from tests.protocol.frames import decode, encode, generate, greeted

DEEP = 100_000


@pytest.mark.parametrize(
    ("encoding", "frame", "message"),
    [
        ("json", "", "not valid json"),
        ("json", "{", "not valid json"),
        ("json", "nonsense", "not valid json"),
        ("json", '{"type":"ping"} x', "not valid json"),
        ("json", "[1]", "not an object"),
        ("json", '"ping"', "not an object"),
        ("json", "null", "not an object"),
        ("json", '{"type":"ping","nonce":NaN}', "not valid json"),
        ("json", '{"type":"ping","nonce":1e999}', "not valid json"),
        ("json", '{"type":"ping","nonce":' + "9" * 5000 + "}", "not valid json"),
        ("json", "[" * DEEP, "nested too deeply"),
        ("json", '{"type":"generate","id":"a","prompt":' + "[" * DEEP + "]" * DEEP + "}", "nested too deeply"),
        ("json", '{"a":' * DEEP, "nested too deeply"),
        ("json", '{"type":"generate","id":"a","prompt":"\\ud800"}', "not valid json"),
        ("json", '{"type":"generate","id":"a","prompt":"\\udc00\\ud800"}', "not valid json"),
        ("json", '{"type":"generate","id":"a","prompt":"\ud800"}', "not valid Unicode"),
        ("json", b'{"type":"ping"}', "speaks JSON in text frames"),
        ("msgpack", '{"type":"ping"}', "speaks msgpack in binary frames"),
        ("msgpack", b"", "not valid msgpack"),
        ("msgpack", b"\xc1", "not valid msgpack"),
        ("msgpack", b"\x91" * DEEP, "nested too deeply"),
        ("msgpack", b"\x81\xa1a" * DEEP, "nested too deeply"),
        ("msgpack", b"\xdf\xff\xff\xff\xff", "not valid msgpack"),
        ("msgpack", b"\xdb\xff\xff\xff\xffabc", "not valid msgpack"),
        ("msgpack", b"\x81\x80\x01", "not valid msgpack"),
        ("msgpack", b"\x81\xa4type\xa1\xff", "not valid msgpack"),
        ("msgpack", b"\x81\xa4type\xa3\xed\xa0\x80", "not valid msgpack"),
        ("msgpack", msgspec.msgpack.encode([1]), "not an object"),
    ],
)
def test_an_unreadable_frame_is_refused_without_an_id(encoding: Encoding, frame: Frame, message: str) -> None:
    session = greeted(encoding)
    session.receive_frame(frame)
    (sent,) = session.take_frames()
    failed = decode(sent)
    assert failed["type"] == "failed"
    assert failed["code"] == "invalid_request"
    assert message in failed["message"]
    assert "id" not in failed
    assert session.take_commands() == []


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_the_session_goes_on_after_an_unreadable_frame(encoding: Encoding) -> None:
    session = greeted(encoding)
    session.receive_frame("[" if encoding == "json" else b"\xc1")
    session.receive_frame(encode(generate(), encoding))
    assert len(session.take_commands()) == 1


def test_escaped_pairs_of_surrogates_are_one_character() -> None:
    session = greeted()
    session.receive_frame('{"type":"generate","id":"\\ud83d\\ude00","prompt":"\\ud83d\\ude00"}')
    (command,) = session.take_commands()
    assert getattr(command, "prompt", None) == "😀"


@pytest.mark.parametrize("extension", [msgspec.msgpack.Ext(5, b"x"), msgspec.msgpack.Ext(-1, b"\x00\x00\x00\x00")])
def test_extension_types_are_refused(extension: msgspec.msgpack.Ext) -> None:
    session = greeted("msgpack")
    session.receive_frame(encode(generate(prompt=extension), "msgpack"))
    (sent,) = session.take_frames()
    assert decode(sent)["param"] == "prompt"
    assert session.take_commands() == []


def test_an_id_lives_from_begin_to_end() -> None:
    live = LiveIds()
    assert not live.was_used("a")
    live.begin("a")
    assert live.is_live("a")
    assert live.is_heard("a")
    live.end("a")
    assert not live.is_live("a")
    assert live.was_used("a")


def test_a_muted_id_keeps_its_name_but_is_not_heard() -> None:
    live = LiveIds()
    live.begin("a")
    live.mute("a")
    assert live.is_live("a")
    assert not live.is_heard("a")


def test_only_the_youngest_ended_ids_are_remembered() -> None:
    live = LiveIds()
    for number in range(MAX_ENDED + 10):
        live.begin(str(number))
        live.end(str(number))
    assert not live.was_used("9")
    assert live.was_used("10")
    assert live.was_used(str(MAX_ENDED + 9))
