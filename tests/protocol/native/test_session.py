"""The native dialect's session: what it answers, what it commands, and when it falls silent."""

import msgspec
import pytest

from protocol.messages import Timing, Usage
from protocol.native.client import decode_event
from protocol.native.session import NativeSession
from protocol.session import MAX_ENDED, Encoding
from protocol.wire import (
    Accepted,
    Authenticate,
    Cancel,
    Credit,
    Draining,
    Failed,
    Finished,
    Generate,
    Hello,
    Resume,
    Tokens,
    WireLogprob,
    WireTopLogprob,
)
from tests.protocol.frames import HELLO, answers, decode, encode, finish, generate, greeted, ids, started


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_hello_is_the_first_frame(encoding: Encoding) -> None:
    session = NativeSession(encoding, hello=HELLO)
    (frame,) = session.take_frames()
    assert isinstance(frame, str) == (encoding == "json")
    assert isinstance(decode_event(frame, encoding), Hello)
    assert session.take_frames() == []


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_full_generate_is_read_in_both_encodings(encoding: Encoding) -> None:
    key: object = "7" if encoding == "json" else 7
    fields = {
        "model": "demo",
        "prompt": None,
        "messages": [{"role": "user", "content": "Grüße 👋"}],
        "max_tokens": 8,
        "temperature": 0,
        "logit_bias": {key: -100},
        "seed": 2**63 - 1,
        "stop": ["\n"],
        "slo": {"ttft_ms": 200},
        "resumable": True,
    }
    session = greeted(encoding)
    assert answers(session, generate(**fields), encoding) == []
    (command,) = session.take_commands()
    assert isinstance(command, Generate)
    assert command.messages is not None
    assert command.messages[0].content == "Grüße 👋"
    assert command.temperature == 0
    assert command.logit_bias == {7: -100}
    assert command.seed == 2**63 - 1
    assert command.credit == 4096
    assert session.take_commands() == []


def test_every_other_command_is_passed_on() -> None:
    session = started("a")
    session.receive_frame(encode({"type": "credit", "id": "a", "tokens": 5}))
    session.receive_frame(encode({"type": "cancel", "id": "a"}))
    session.receive_frame(encode({"type": "resume", "id": "b", "resume_token": "t", "after": 3}))
    session.receive_frame(encode({"type": "authenticate", "key": "k"}))
    assert session.take_commands() == [
        Credit(id="a", tokens=5),
        Cancel(id="a"),
        Resume(id="b", resume_token="t", after=3),  # noqa: S106 - names a stream of this test
        Authenticate(key="k"),
    ]
    assert session.take_frames() == []


@pytest.mark.parametrize("nonce", [0, 2**63 - 1, "", "x" * 128])
def test_ping_is_answered_with_its_nonce(nonce: object) -> None:
    session = greeted()
    assert answers(session, {"type": "ping", "nonce": nonce}) == [{"type": "pong", "nonce": nonce}]
    assert session.take_commands() == []


def test_events_of_a_request_go_out_in_order_until_its_end() -> None:
    session = started("a")
    session.send_event(Accepted(id="a", prompt_tokens=1))
    session.send_event(Tokens(id="a", index=0, count=1, text="é"))
    session.send_event(finish("a"))
    session.send_event(Tokens(id="a", index=1, count=1, text="late"))
    session.send_event(finish("a"))
    kinds = [decode(frame)["type"] for frame in session.take_frames()]
    assert kinds == ["accepted", "tokens", "finished"]


def test_fields_that_are_not_set_are_not_sent() -> None:
    session = started("a")
    session.send_event(Tokens(id="a", index=0, count=2, text="hi"))
    session.send_event(Finished(id="a", reason="length", usage=Usage(3, 2, 1), timing=Timing(ttft_ms=1.5)))
    tokens, finished = map(decode, session.take_frames())
    assert tokens == {"type": "tokens", "id": "a", "index": 0, "count": 2, "text": "hi"}
    assert "stop" not in finished
    assert finished["usage"] == {"prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 1}
    assert finished["timing"] == {"queue_ms": None, "ttft_ms": 1.5, "tpot_ms": None, "total_ms": None}


def test_infinite_logprobs_reach_a_json_client_as_numbers() -> None:
    session = started("a")
    top = [WireTopLogprob(token=2, logprob=float("-inf"))]
    session.send_event(
        Tokens(id="a", index=0, count=1, text="x", logprobs=[WireLogprob(token=1, logprob=-0.5, top=top)])
    )
    (frame,) = session.take_frames()
    assert decode(frame)["logprobs"] == [{"token": 1, "logprob": -0.5, "top": [{"token": 2, "logprob": -9999.0}]}]


def test_events_of_unknown_ids_are_dropped() -> None:
    session = greeted()
    session.send_event(Tokens(id="nobody", index=0, count=1, text="x"))
    session.send_event(finish("nobody"))
    assert session.take_frames() == []


def test_draining_and_nameless_failures_go_out() -> None:
    session = greeted()
    session.send_event(Draining(deadline_ms=5))
    session.send_event(Failed(code="unauthenticated", message="no"))
    assert [decode(frame)["type"] for frame in session.take_frames()] == ["draining", "failed"]


def test_a_running_id_cannot_be_used_again_and_the_first_goes_on() -> None:
    session = started("a")
    (failed,) = answers(session, generate())
    assert (failed["code"], failed["id"]) == ("duplicate_id", "a")
    assert session.take_commands() == []
    session.send_event(Tokens(id="a", index=0, count=1, text="x"))
    session.send_event(finish("a"))
    assert [decode(frame)["type"] for frame in session.take_frames()] == ["tokens", "finished"]


def test_a_duplicate_is_named_before_anything_else_that_is_wrong() -> None:
    session = started("a")
    (failed,) = answers(session, generate(temperature=9, nonsense=1))
    assert failed["code"] == "duplicate_id"


def test_resume_may_not_take_a_running_id() -> None:
    session = started("a")
    (failed,) = answers(session, {"type": "resume", "id": "a", "resume_token": "t", "after": 0})
    assert failed["code"] == "duplicate_id"


@pytest.mark.parametrize("end", [finish("a"), Failed(id="a", code="internal", message="no")])
def test_an_id_is_free_after_its_end(end: Finished | Failed) -> None:
    session = started("a")
    session.send_event(end)
    session.take_frames()
    assert answers(session, generate()) == []
    assert ids(session.take_commands()) == [("Generate", "a")]


@pytest.mark.parametrize("message", [{"type": "cancel", "id": "a"}, {"type": "credit", "id": "a", "tokens": 1}])
def test_cancel_and_credit_that_race_with_the_end_are_ignored(message: dict[str, object]) -> None:
    session = started("a")
    session.send_event(finish("a"))
    session.take_frames()
    assert answers(session, message) == []
    assert session.take_commands() == []


def test_cancel_after_a_refused_generate_is_ignored() -> None:
    session = greeted()
    (failed,) = answers(session, generate(temperature=9))
    assert failed["id"] == "a"
    assert answers(session, {"type": "cancel", "id": "a"}) == []


@pytest.mark.parametrize("message", [{"type": "cancel", "id": "x"}, {"type": "credit", "id": "x", "tokens": 1}])
def test_a_name_never_used_is_unknown(message: dict[str, object]) -> None:
    session = started("a")
    (failed,) = answers(session, message)
    assert (failed["code"], failed["id"], failed["param"]) == ("unknown_id", "x", "id")


def test_ended_ids_are_remembered_in_bounded_memory() -> None:
    session = greeted()
    for number in range(MAX_ENDED + 1):
        session.receive_frame(encode(generate(id=str(number))))
        session.send_event(finish(str(number)))
    session.take_frames()
    assert answers(session, {"type": "cancel", "id": "1"}) == []
    (failed,) = answers(session, {"type": "cancel", "id": "0"})
    assert failed["code"] == "unknown_id"


def test_a_bad_frame_about_a_running_request_is_its_end() -> None:
    session = started("a", "b")
    (failed,) = answers(session, {"type": "credit", "id": "a", "tokens": 0})
    assert (failed["id"], failed["param"]) == ("a", "tokens")
    assert session.take_commands() == [Cancel(id="a")]
    session.send_event(Tokens(id="a", index=0, count=1, text="x"))
    session.send_event(finish("a"))
    session.send_event(Tokens(id="b", index=0, count=1, text="y"))
    assert [decode(frame)["id"] for frame in session.take_frames()] == ["b"]


def test_after_its_end_a_request_is_not_named_again_until_the_engine_is_done_with_it() -> None:
    session = started("a")
    answers(session, {"type": "credit", "id": "a", "tokens": 0})
    (again,) = answers(session, {"type": "credit", "id": "a", "tokens": 0})
    assert "id" not in again
    (taken,) = answers(session, generate())
    assert taken["code"] == "duplicate_id"
    session.send_event(finish("a"))
    session.take_commands()
    assert answers(session, generate()) == []
    assert ids(session.take_commands()) == [("Generate", "a")]


def test_too_many_running_requests_are_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.session.MAX_LIVE", 2)
    session = started("a", "b")
    (failed,) = answers(session, generate(id="c"))
    assert (failed["code"], failed["id"]) == ("overloaded", "c")
    assert failed["retry_after_ms"] > 0
    session.send_event(finish("a"))
    session.take_frames()
    assert answers(session, generate(id="d")) == []


def test_the_last_of_two_equal_keys_counts() -> None:
    session = greeted()
    session.receive_frame('{"type":"generate","id":"a","prompt":"x","id":"b"}')
    assert ids(session.take_commands()) == [("Generate", "b")]


def test_commands_are_handed_out_once_in_order() -> None:
    session = greeted()
    for name in "abc":
        session.receive_frame(encode(generate(id=name)))
    assert [name for _, name in ids(session.take_commands())] == ["a", "b", "c"]
    assert session.take_commands() == []


def test_a_finished_frame_round_trips_through_the_client() -> None:
    session = started("a")
    event = Finished(id="a", reason="stop", usage=Usage(1, 0, 1), timing=Timing(1.0, 2.0, None, 3.0), stop="\n\n")
    session.send_event(event)
    (frame,) = session.take_frames()
    assert decode_event(frame, "json") == event


def test_outgoing_msgpack_is_the_same_map_as_json() -> None:
    frames = []
    for encoding in ("json", "msgpack"):
        session = greeted(encoding)
        session.receive_frame(encode(generate(), encoding))
        session.send_event(Tokens(id="a", index=0, count=1, text="x", tokens=[5]))
        frames += session.take_frames()
    assert decode(frames[0]) == msgspec.msgpack.decode(frames[1])  # type: ignore[arg-type] # the second is binary


def test_codes_of_refused_frames_are_handed_out_once() -> None:
    session = greeted()
    session.receive_frame("nonsense")
    session.receive_frame('{"type":"cancel","id":"never"}')
    assert session.take_refusals() == ["invalid_request", "unknown_id"]
    assert session.take_refusals() == []
