"""Lanes, conversations, cancelling and errors of the Responses dialect, seen through the `openai` package's types."""

import json
from typing import Any

import pytest

from protocol.errors import ERROR_CODES
from protocol.responses.session import MAX_KEPT, MAX_WAITING, Conversations
from protocol.wire import Cancel, ChatMessage, Draining, Failed
from tests.protocol.responses.dialogue import Dialogue, warmed

TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def kinds(events: list[Any]) -> list[str]:
    return [event.type for event in events]


def test_text_comes_in_the_fixed_order_of_events() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.piece(generate.id, "Hel")
    talk.piece(generate.id, "lo 👋")
    talk.finish(generate.id)
    events = talk.heard()
    assert kinds(events) == TEXT_EVENTS
    assert [event.sequence_number for event in events] == list(range(10))
    assert "".join(event.delta for event in events[4:6]) == "Hello 👋"
    assert events[6].text == "Hello 👋"
    assert events[-1].response.output_text == "Hello 👋"


def test_nothing_is_said_before_the_engine_accepts() -> None:
    talk = Dialogue()
    generate = talk.create()
    assert talk.heard() == []
    talk.accept(generate.id)
    assert kinds(talk.heard()) == ["response.created", "response.in_progress"]


def test_requests_on_one_lane_are_answered_first_in_first_out() -> None:
    talk = Dialogue()
    first = talk.create(input="one", stream_id="lane")
    talk.say(type="response.create", input="two", stream_id="lane")
    assert talk.session.take_commands() == []
    talk.accept(first.id)
    talk.finish(first.id)
    second = talk.command()
    talk.accept(getattr(second, "id", ""))
    assert {event.stream_id for event in talk.heard()} == {"lane"}


def test_lanes_run_side_by_side_and_echo_their_name() -> None:
    talk = Dialogue()
    left, right, plain = talk.begin(stream_id="left"), talk.begin(stream_id="right"), talk.begin()
    talk.heard()
    for generate in (left, right, plain):
        talk.piece(generate.id, generate.id)
    deltas = [event for event in talk.heard() if event.type == "response.output_text.delta"]
    assert [(event.stream_id, event.delta) for event in deltas] == [
        ("left", left.id),
        ("right", right.id),
        (None, plain.id),
    ]


def test_the_default_lane_is_not_named_in_events() -> None:
    talk = Dialogue()
    talk.begin()
    assert all("stream_id" not in json.loads(frame) for frame in talk.session.take_frames())


def test_an_error_waits_for_its_turn_in_the_lane() -> None:
    talk = Dialogue()
    first = talk.begin(stream_id="lane")
    talk.heard()
    talk.say(type="response.create", input="x", temperature=9, stream_id="lane")
    talk.say(type="response.create", input="three", stream_id="lane")
    assert talk.heard() == []
    talk.finish(first.id)
    assert kinds(talk.heard())[-2:] == ["response.completed", "error"]
    assert len(talk.session.take_commands()) == 1


def test_an_error_before_acceptance_lets_the_next_in_the_lane_go() -> None:
    talk = Dialogue()
    first = talk.create()
    talk.say(type="response.create", input="two")
    talk.fail(Failed(id=first.id, code="overloaded", message="full", retry_after_ms=1500))
    (error,) = talk.heard()
    assert (error.status, error.error.code, error.error.message) == (429, "overloaded", "full")
    assert error.error.headers == {"retry-after": "2", "retry-after-ms": "1500"}
    assert getattr(talk.command(), "id", first.id) != first.id


def test_too_many_waiting_requests_are_refused_at_once() -> None:
    talk = Dialogue()
    talk.begin()
    talk.heard()
    for _ in range(MAX_WAITING):
        talk.say(type="response.create", input="x")
    assert talk.heard() == []
    error = talk.error(type="response.create", input="x")
    assert (error.status, error.error.code) == (429, "overloaded")


def test_previous_response_id_goes_on_with_the_conversation() -> None:
    talk = Dialogue()
    first = talk.answer("Hello", input="Hi", instructions="Be brief.")
    second = talk.answer("Fine", input="And you?", previous_response_id=first, instructions="Be long.")
    third = talk.create(input="Why?", previous_response_id=second)
    assert third.messages == [
        ChatMessage(role="user", content="Hi"),
        ChatMessage(role="assistant", content="Hello"),
        ChatMessage(role="user", content="And you?"),
        ChatMessage(role="assistant", content="Fine"),
        ChatMessage(role="user", content="Why?"),
    ]


def test_a_conversation_can_fork_onto_another_lane() -> None:
    talk = Dialogue()
    first = talk.answer("Hello")
    for lane in ("left", "right"):
        generate = talk.create(input=lane, previous_response_id=first, stream_id=lane)
        assert generate.messages is not None
        assert [message.content for message in generate.messages] == ["Hi", "Hello", lane]


def test_a_request_may_be_sent_before_the_one_it_goes_on_from_is_done() -> None:
    talk = Dialogue()
    first = talk.begin()
    talk.say(type="response.create", input="next", previous_response_id=first.id)
    talk.piece(first.id, "Hello")
    talk.finish(first.id)
    command = talk.command()
    assert [message.content for message in getattr(command, "messages", [])] == ["Hi", "Hello", "next"]


def test_an_unknown_previous_response_is_refused() -> None:
    talk = Dialogue()
    error = talk.error(type="response.create", input="x", previous_response_id="resp_9", stream_id="lane")
    assert (error.status, error.stream_id) == (400, "lane")
    assert (error.error.code, error.error.param) == ("previous_response_not_found", "previous_response_id")


def test_the_response_names_the_one_before() -> None:
    talk = Dialogue()
    first = talk.answer()
    talk.begin(previous_response_id=first)
    assert talk.heard()[0].response.previous_response_id == first


def test_a_cut_answer_is_part_of_the_conversation() -> None:
    talk = Dialogue()
    first = talk.begin()
    talk.piece(first.id, "Hel")
    talk.finish(first.id, "length")
    second = talk.create(input="go on", previous_response_id=first.id)
    assert second.messages is not None
    assert [message.content for message in second.messages] == ["Hi", "Hel", "go on"]


def test_cancel_ends_a_response_as_incomplete() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.piece(generate.id, "Hel")
    talk.heard()
    talk.say(type="response.cancel", response_id=generate.id)
    assert talk.command() == Cancel(id=generate.id)
    talk.finish(generate.id, "cancelled")
    events = talk.heard()
    assert kinds(events)[-1] == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert events[-1].response.incomplete_details is None
    assert events[-1].response.output_text == "Hel"


def test_cancel_that_races_with_the_end_is_ignored() -> None:
    talk = Dialogue()
    name = talk.answer()
    talk.say(type="response.cancel", response_id=name)
    assert talk.heard() == []
    assert talk.session.take_commands() == []


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("resp_9", 404, "unknown_id"), (None, 400, "invalid_request"), (4, 400, "invalid_request")],
)
def test_cancel_of_no_response_is_an_error(name: object, status: int, code: str) -> None:
    error = Dialogue().error(type="response.cancel", response_id=name)
    assert (error.status, error.error.code, error.error.param) == (status, code, "response_id")


def test_warming_computes_the_prompt_and_answers_nothing() -> None:
    talk = Dialogue()
    talk.say(type="response.create", input="Once upon a time", generate=False)
    generate = warmed(talk.command())
    talk.accept(generate.id)
    talk.finish(generate.id, "length")
    events = talk.heard()
    assert kinds(events) == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1].response.output == []
    assert events[-1].response.status == "completed"
    after = talk.create(input="there was", previous_response_id=generate.id)
    assert after.messages is not None
    assert [message.content for message in after.messages] == ["Once upon a time", "there was"]


def test_a_warmed_prompt_can_be_answered_without_new_input() -> None:
    talk = Dialogue()
    talk.say(type="response.create", input="Hi", prompt_cache_options={"prewarm": True})
    generate = warmed(talk.command())
    talk.accept(generate.id)
    talk.finish(generate.id, "length")
    talk.say(type="response.create", previous_response_id=generate.id)
    assert getattr(talk.command(), "messages", None) == [ChatMessage(role="user", content="Hi")]


@pytest.mark.parametrize(
    "frame", ["", "[", "[]", "null", "[" * 100_000, '{"type":"response.create","input":"\\ud800"}', b"{}"]
)
def test_an_unreadable_frame_is_an_error_on_the_default_lane(frame: str | bytes) -> None:
    talk = Dialogue()
    talk.session.receive_frame(frame)
    (error,) = talk.heard()
    assert (error.status, error.error.type, error.stream_id) == (400, "invalid_request_error", None)


@pytest.mark.parametrize("kind", [None, "", "response.steer", "session.update", 4])
def test_an_unknown_event_type_is_an_error(kind: object) -> None:
    error = Dialogue().error(type=kind)
    assert (error.status, error.error.param) == (400, "type")


@pytest.mark.parametrize("lane", ["", "x" * 257, "no spaces", "é", 4, []])
def test_an_invalid_lane_name_is_an_error_without_a_lane(lane: object) -> None:
    error = Dialogue().error(type="response.create", input="x", stream_id=lane)
    assert (error.status, error.error.code, error.stream_id) == (400, "invalid_stream_id", None)


def test_every_error_code_has_a_status_and_is_parsed() -> None:
    statuses = {}
    for code in ERROR_CODES:
        talk = Dialogue()
        generate = talk.create(stream_id="lane")
        talk.fail(Failed(id=generate.id, code=code, message="m", param="max_tokens"))
        (error,) = talk.heard()
        assert (error.error.code, error.error.param, error.stream_id) == (code, "max_output_tokens", "lane")
        statuses[code] = error.status
    assert statuses["invalid_request"] == statuses["context_length_exceeded"] == 400
    assert statuses["unauthenticated"] == 401
    assert statuses["model_not_found"] == 404
    assert statuses["duplicate_id"] == 409
    assert statuses["overloaded"] == statuses["slo_unattainable"] == 429
    assert statuses["internal"] == 500
    assert statuses["draining"] == 503


def test_a_failure_of_an_accepted_response_is_its_terminal_event() -> None:
    for code in ERROR_CODES:
        talk = Dialogue()
        generate = talk.begin()
        talk.piece(generate.id, "Hel")
        talk.fail(Failed(id=generate.id, code=code, message="worker died"))
        last = talk.heard()[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.message == "worker died"
        assert last.response.output_text == "Hel"


def test_nothing_follows_the_terminal_event() -> None:
    talk = Dialogue()
    name = talk.answer()
    talk.piece(name, "late")
    talk.finish(name)
    talk.fail(Failed(id=name, code="internal", message="late"))
    talk.session.send_event(Draining(deadline_ms=1))
    talk.session.send_event(Failed(code="internal", message="nobody"))
    assert talk.heard() == []


def test_an_idle_session_keeps_nothing_but_conversations() -> None:
    talk = Dialogue()
    for lane in range(50):
        talk.answer(stream_id=str(lane))
    assert talk.responses._waiting == {}
    assert talk.responses._answers == {}


def test_codes_of_refused_frames_are_handed_out_once_and_failures_of_the_engine_are_not() -> None:
    dialogue = Dialogue()
    dialogue.say(type="response.create", input="Hi", model="nope")
    dialogue.say(type="response.cancel", response_id="nope")
    generate = dialogue.create()
    dialogue.fail(Failed(id=generate.id, code="overloaded", message="full"))
    assert dialogue.session.take_refusals() == ["model_not_found", "unknown_id"]
    assert dialogue.session.take_refusals() == []


def turns(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(role="user", content=text),)


def test_what_is_remembered_can_be_recalled_often() -> None:
    kept = Conversations()
    kept.remember("a", turns("x"))
    assert kept.recall("a") == kept.recall("a") == turns("x")
    assert kept.recall("b") is None


def test_the_least_recently_used_go_first() -> None:
    kept = Conversations()
    for number in range(MAX_KEPT):
        kept.remember(str(number), turns("x"))
    kept.recall("0")
    kept.remember("new", turns("x"))
    assert kept.recall("1") is None
    assert kept.recall("0") == turns("x")


def test_text_is_bounded_and_the_youngest_is_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.responses.session.MAX_CHARACTERS", 10)
    kept = Conversations()
    kept.remember("a", turns("x" * 6))
    kept.remember("b", turns("x" * 6))
    assert kept.recall("a") is None
    kept.remember("c", turns("x" * 100))
    assert kept.recall("b") is None
    assert kept.recall("c") == turns("x" * 100)
    kept.remember("d", turns("x"))
    assert kept.recall("c") is None
    assert kept.recall("d") == turns("x")
