"""The response objects and text events of one answer."""

from protocol.wire import Failed, WireLogprob, WireTopLogprob
from tests.protocol.responses.dialogue import CREATED_AT, Dialogue


def test_the_response_repeats_what_was_asked() -> None:
    talk = Dialogue()
    talk.begin(
        model="other",
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=7,
        metadata={"k": "v"},
        top_logprobs=2,
        user="u",
        parallel_tool_calls=False,
    )
    response = talk.heard()[0].response
    assert response.id == "resp_0"
    assert response.created_at == CREATED_AT
    assert response.status == "in_progress"
    assert (response.model, response.instructions) == ("other", "Be brief.")
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.9, 7)
    assert response.metadata == {"k": "v"}
    assert (response.top_logprobs, response.user, response.parallel_tool_calls) == (2, "u", False)
    assert (response.tools, response.tool_choice, response.text.format.type) == ([], "auto", "text")
    assert (response.output, response.usage, response.error) == ([], None, None)


def test_usage_counts_tokens() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.finish(generate.id, cached=2)
    usage = talk.heard()[-1].response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)
    assert usage.input_tokens_details.cached_tokens == 2
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_a_length_stop_is_incomplete() -> None:
    talk = Dialogue()
    generate = talk.begin(max_output_tokens=2)
    talk.piece(generate.id, "Hel")
    talk.finish(generate.id, "length")
    last = talk.heard()[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"
    assert last.response.completed_at is None


def test_an_answer_without_text_still_has_its_item() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.piece(generate.id, "")
    talk.finish(generate.id)
    events = talk.heard()
    assert "response.output_text.delta" not in [event.type for event in events]
    assert len(events) == 8
    assert events[-1].response.output_text == ""
    assert events[-1].response.completed_at == CREATED_AT


def test_items_are_the_same_wherever_they_are_named() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.piece(generate.id, "Hello")
    talk.finish(generate.id)
    created, _, added, part, delta, text, part_done, item_done, completed = talk.heard()
    item = completed.response.output[0]
    assert {part.item_id, delta.item_id, text.item_id, part_done.item_id} == {added.item.id} == {item.id}
    assert item_done.item == item
    assert item.content[0] == part_done.part
    assert created.response.id == completed.response.id == generate.id
    assert (added.item.status, added.item.content, part.part.text) == ("in_progress", [], "")


def test_logprobs_come_with_deltas_and_again_at_the_end() -> None:
    talk = Dialogue()
    generate = talk.begin(include=["message.output_text.logprobs"], top_logprobs=1)
    assert generate.logprobs == 1
    top = [WireTopLogprob(token=9, logprob=float("-inf"))]
    talk.piece(generate.id, "é", logprobs=[WireLogprob(token=5, logprob=-0.5, top=top, text="é")])
    talk.piece(generate.id, "", logprobs=[WireLogprob(token=2, logprob=-0.25, text="")])
    talk.finish(generate.id)
    events = talk.heard()
    delta = events[4]
    assert [(one.token, one.logprob) for one in delta.logprobs] == [("é", -0.5)]
    assert [(one.token, one.logprob) for one in delta.logprobs[0].top_logprobs] == [("token_id:9", -9999.0)]
    done = events[5]
    assert [one.token for one in done.logprobs] == ["é", ""]
    final = events[-1].response.output[0].content[0].logprobs
    assert [(one.token, one.bytes, one.logprob) for one in final] == [("é", [0xC3, 0xA9], -0.5), ("", [], -0.25)]


def test_without_being_asked_there_are_no_logprobs() -> None:
    assert Dialogue().create().logprobs is None
    assert Dialogue().create(include=["message.output_text.logprobs"]).logprobs == 0
    assert Dialogue().create(top_logprobs=0).logprobs == 0


def test_a_failure_before_any_text_has_no_output() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.fail(Failed(id=generate.id, code="overloaded", message="m", param="max_tokens"))
    last = talk.heard()[-1]
    assert last.response.output == []
    assert (last.response.error.code, last.response.error.param) == ("rate_limit_exceeded", "max_output_tokens")
