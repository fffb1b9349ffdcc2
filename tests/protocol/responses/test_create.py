"""What `response.create` becomes, and what it is refused for."""

import json
from typing import Any

import pytest
from openai.resources.responses.responses import AsyncResponsesConnection
from openai.types.responses.responses_client_event import ResponseCreate

from protocol.bounds import MAX_INT31
from protocol.wire import ChatMessage, Generate
from tests.protocol.responses.dialogue import Dialogue


class Wire:
    """A socket that keeps what the package sends."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, data: str) -> None:
        self.sent.append(data)


async def test_what_the_stock_client_sends_is_read() -> None:
    wire: Any = Wire()
    connection = AsyncResponsesConnection(wire)
    await connection.response.create(
        model="demo",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi 👋"}]},
        ],
        temperature=0,
        max_output_tokens=5,
        store=False,
        stream_id="lane-1",
        reasoning={"effort": "low"},
        service_tier="auto",
        tools=[],
        text={"format": {"type": "text"}},
    )
    talk = Dialogue()
    talk.session.receive_frame(wire.sent[0])
    command = talk.command()
    assert isinstance(command, Generate)
    assert command.messages == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi 👋"),
    ]
    assert (command.model, command.temperature, command.max_tokens) == ("demo", 0, 5)
    assert command.credit == MAX_INT31


async def test_the_typed_client_event_is_read() -> None:
    wire: Any = Wire()
    event = ResponseCreate(type="response.create", model="demo", input="Hi", generate=None, metadata=None)
    await AsyncResponsesConnection(wire).send(event)
    talk = Dialogue()
    talk.session.receive_frame(wire.sent[0])
    assert isinstance(talk.command(), Generate)


async def test_output_items_of_an_answer_can_be_sent_back_as_input() -> None:
    talk = Dialogue()
    generate = talk.begin()
    talk.piece(generate.id, "Hello")
    talk.finish(generate.id)
    output = talk.heard()[-1].response.output
    wire: Any = Wire()
    await AsyncResponsesConnection(wire).response.create(input=[{"role": "user", "content": "Hi"}, *output])
    talk.session.receive_frame(wire.sent[0])
    assert getattr(talk.command(), "messages", None) == [
        ChatMessage(role="user", content="Hi"),
        ChatMessage(role="assistant", content="Hello"),
    ]


def test_instructions_are_the_first_system_message() -> None:
    generate = Dialogue().create(instructions="Be brief.", input=[{"role": "system", "content": "Be kind."}])
    assert generate.messages == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="system", content="Be kind."),
    ]


def test_fields_may_be_nested_under_response() -> None:
    talk = Dialogue()
    talk.say(type="response.create", response={"input": "Hi", "temperature": 0})
    assert getattr(talk.command(), "temperature", None) == 0


def test_unknown_and_harmless_fields_are_ignored() -> None:
    Dialogue().create(
        stream=True,
        background=False,
        tools=[],
        tool_choice="auto",
        text={"format": {"type": "text"}, "verbosity": "low"},
        truncation="auto",
        reasoning={"effort": "low"},
        conversation=None,
        stream_options={"include_obfuscation": False},
        brand_new_field={"x": [1]},
    )


def test_the_model_may_be_left_out() -> None:
    assert Dialogue().create().model == "demo"


def test_a_bound_beyond_the_model_limit_is_no_bound() -> None:
    assert Dialogue(max_model_len=100).create(max_output_tokens=99).max_tokens == 99
    assert Dialogue(max_model_len=100).create(max_output_tokens=100).max_tokens is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"k": 3}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"instructions": 5}, "instructions"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"generate": "no"}, "generate"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    error = Dialogue().error(**({"type": "response.create", "input": "Hi"} | fields))
    assert (error.status, error.error.param, error.error.code) == (400, param, "invalid_request")
    assert param in error.error.message or "tools" in error.error.message


def test_another_model_is_not_found() -> None:
    error = Dialogue().error(type="response.create", input="Hi", model="gpt-6")
    assert (error.status, error.error.code, error.error.param) == (404, "model_not_found", "model")


def test_messages_are_in_the_house_style() -> None:
    error = Dialogue().error(type="response.create", input="Hi", temperature=3.5)
    assert error.error.message == "temperature is 3.5; it must be between 0 and 2"


def test_numbers_that_json_cannot_carry_are_unreadable() -> None:
    talk = Dialogue()
    talk.session.receive_frame(json.dumps({"type": "response.create", "input": "Hi", "temperature": float("nan")}))
    (error,) = talk.heard()
    assert error.status == 400
