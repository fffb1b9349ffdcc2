"""Whatever arrives, nothing escapes the session, and all that it says is what the `openai` package's types describe."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire import Failed, Generate, StreamCommand, Warm
from tests.protocol.responses.dialogue import Dialogue
from tests.protocol.strategies import json_values

FIELDS = [
    "type", "model", "input", "instructions", "temperature", "top_p", "max_output_tokens", "metadata", "store",
    "previous_response_id", "generate", "include", "top_logprobs", "parallel_tool_calls", "background", "tools",
    "tool_choice", "text", "conversation", "prompt", "stream_id", "response", "response_id", "prompt_cache_options",
]  # fmt: skip
parts = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["input_text", "output_text", "x"]), "text": json_values}
)
items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "reasoning"]),
        "role": st.sampled_from(["user", "assistant", "tool"]),
        "content": st.text(max_size=5) | st.lists(parts, max_size=3) | json_values,
    },
)
inputs = st.one_of(st.text(max_size=5), st.lists(items, max_size=3), json_values)
changes = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=2)
creates = st.builds(
    lambda given, lane, change: {"type": "response.create", "input": given, **lane, **change},
    inputs,
    st.sampled_from([{}, {"stream_id": "a"}, {"stream_id": "b"}]),
    changes,
)
cancels = st.builds(lambda number: {"type": "response.cancel", "response_id": f"resp_{number}"}, st.integers(0, 6))
frames = st.one_of(st.text(max_size=20), st.binary(max_size=9), (creates | cancels | json_values).map(json.dumps))
acts = st.tuples(st.sampled_from(["accept", "piece", "stop", "length", "cancelled", "fail"]), st.integers(0, 6))


@settings(deadline=None, max_examples=300)
@given(steps=st.lists(st.one_of(frames, acts), max_size=15))
def test_any_frames_and_events_are_survived(steps: list[Any]) -> None:
    talk = Dialogue()
    terminal: set[str] = set()
    for step in steps:
        if isinstance(step, tuple):
            act(talk, *step)
        else:
            talk.session.receive_frame(step)
        check_commands(talk)
        for event in talk.heard():
            response = getattr(event, "response", None)
            if response is not None:
                assert response.id not in terminal
                if event.type in ("response.completed", "response.incomplete", "response.failed"):
                    terminal.add(response.id)


def act(talk: Dialogue, what: str, number: int) -> None:
    name = f"resp_{number}"
    match what:
        case "accept":
            talk.accept(name)
        case "piece":
            talk.piece(name, "x")
        case "fail":
            talk.fail(Failed(id=name, code="internal", message="m"))
        case "stop" | "length" | "cancelled":
            talk.finish(name, what)


def check_commands(talk: Dialogue) -> None:
    for command in talk.session.take_commands():
        inner = command.generate if isinstance(command, Warm) else command
        assert msgspec.convert(msgspec.to_builtins(inner), StreamCommand) == inner
        if isinstance(inner, Generate):
            assert inner.messages
