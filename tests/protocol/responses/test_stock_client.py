"""The stock `openai` client, unmodified, over a real socket; behind the session stands an engine that echoes."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)
from websockets.asyncio.server import ServerConnection, serve

from protocol.messages import FinishReason, Timing, Usage
from protocol.responses import ResponsesSession
from protocol.wire import Accepted, Finished, Generate, SessionCommand, Tokens, Warm
from tests.protocol.kept import KeptSession
from tests.protocol.responses.dialogue import CREATED_AT

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8,
    max_events_per_lane=100,
    max_events=500,
    max_bytes_per_lane=2**20,
    max_bytes=2**22,
)


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k") as stock:
            yield stock


async def echo(connection: ServerConnection) -> None:
    """Answer with the last message's words, one a piece; `max_output_tokens` cuts."""
    numbers = itertools.count()
    session = KeptSession(
        ResponsesSession(
            models=("demo",),
            max_model_len=2048,
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            clock=lambda: CREATED_AT,
        )
    )
    async for frame in connection:
        session.receive_frame(frame)
        for command in session.take_commands():
            answer(session, command)
        for sent in session.take_frames():
            await connection.send(sent)


def answer(session: KeptSession, command: SessionCommand) -> None:
    generate = command.generate if isinstance(command, Warm) else command
    assert isinstance(generate, Generate)
    assert generate.messages is not None
    words = [] if isinstance(command, Warm) else generate.messages[-1].content.split(" ")
    kept = words[: generate.max_tokens]
    session.send_event(Accepted(id=generate.id, prompt_tokens=1))
    for index, word in enumerate(kept):
        session.send_event(Tokens(id=generate.id, index=index, count=1, text=word if index == 0 else f" {word}"))
    reason: FinishReason = "stop" if kept == words else "length"
    usage = Usage(len(generate.messages), 0, len(kept))
    session.send_event(Finished(id=generate.id, reason=reason, usage=usage, timing=Timing()))
    for command_behind in session.take_commands():
        answer(session, command_behind)


async def test_one_answer(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model="demo", input="hello there 👋")
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                assert event.response.output_text == text == "hello there 👋"
                break


async def test_two_lanes_at_once(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        left, right = session.lane("left"), session.lane("right")
        await left.send({"type": "response.create", "model": "demo", "input": "to the left"})
        await right.send({"type": "response.create", "model": "demo", "input": "to the right"})
        assert (await right.get_final_response()).output_text == "to the right"
        assert (await left.get_final_response()).output_text == "to the left"


async def test_a_conversation_a_cut_and_an_error_on_one_lane(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        lane = session.lane("talk")
        await lane.send({"type": "response.create", "model": "demo", "input": "one two three", "max_output_tokens": 2})
        first = await lane.get_final_response()
        assert (first.status, first.output_text) == ("incomplete", "one two")
        assert first.incomplete_details is not None
        assert first.incomplete_details.reason == "max_output_tokens"

        await lane.send({"type": "response.create", "input": "four", "previous_response_id": first.id})
        second = await lane.get_final_response()
        assert second.output_text == "four"
        assert second.usage is not None
        assert second.usage.input_tokens == 3

        await lane.send({"type": "response.create", "input": "x", "temperature": 9})
        with pytest.raises(ResponsesWebSocketError) as caught:
            await lane.get_final_response()
        error: Any = caught.value.event
        assert (error.status, error.error.param) == (400, "temperature")

        await lane.send({"type": "response.create", "input": "still here"})
        assert (await lane.get_final_response()).output_text == "still here"


async def test_warming_up(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        await session.default.send({"type": "response.create", "input": "a long story", "generate": False})
        warm = await session.default.get_final_response()
        assert (warm.status, warm.output) == ("completed", [])
        await session.default.send({"type": "response.create", "input": "go", "previous_response_id": warm.id})
        final = await session.default.get_final_response()
        assert final.output_text == "go"
        assert final.usage is not None
        assert final.usage.input_tokens == 2
