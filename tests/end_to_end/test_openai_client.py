"""The stock `openai` package, unmodified, drives /v1/responses as its users do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.end_to_end.running_node import RunningNode

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
TEXT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.fixture
async def openai(demo_node: RunningNode) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{demo_node.http_url}/v1", api_key="any") as client:
        yield client


async def events_until_end(connection: Any) -> list[Any]:
    events = []
    async with asyncio.timeout(60):
        async for event in connection:
            events.append(event)
            if event.type in TERMINAL:
                return events
    raise AssertionError("the connection ended before the response did")


def collapsed(events: list[Any]) -> list[str]:
    kinds = [event.type for event in events]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_one_answer_arrives_in_the_documented_event_order(openai: AsyncOpenAI) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input="What is the capital of France?", temperature=0)
        events = await events_until_end(connection)
    assert collapsed(events) == [*TEXT_ORDER, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert "Paris" in text_of(events)
    assert final.output_text == text_of(events)
    assert final.status == "completed"
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


async def test_length_stop_is_incomplete_with_its_reason(openai: AsyncOpenAI) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input="Tell me a long story.", max_output_tokens=16)
        events = await events_until_end(connection)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].response.usage.output_tokens == 16


async def test_two_lanes_run_at_once(openai: AsyncOpenAI) -> None:
    seen: list[str] = []
    async with openai.responses.connect() as connection, asyncio.timeout(120):
        for lane in ("a", "b"):
            await connection.response.create(
                model="demo", input="Count slowly from one to fifty.", stream_id=lane, max_output_tokens=48
            )
        ended = 0
        async for event in connection:
            seen.append(event.stream_id or "")
            ended += event.type in TERMINAL
            if ended == 2:
                break
    first_end = min(len(seen) - seen[::-1].index(lane) for lane in ("a", "b"))
    assert {"a", "b"} <= set(seen[: first_end - 1]), "the lanes ran one after the other"


async def test_previous_response_id_continues_the_conversation(openai: AsyncOpenAI) -> None:
    first_turn: Any = {"role": "user", "content": "My name is Anna. Greet me."}
    second_turn: Any = {"role": "user", "content": "What did I say?"}
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input=[first_turn], temperature=0, max_output_tokens=24)
        first = (await events_until_end(connection))[-1].response
        await connection.response.create(
            model="demo", input=[second_turn], previous_response_id=first.id, temperature=0, max_output_tokens=24
        )
        second = (await events_until_end(connection))[-1].response
        whole = [first_turn, {"role": "assistant", "content": first.output_text}, second_turn]
        await connection.response.create(model="demo", input=whole, temperature=0, max_output_tokens=24)
        told_again = (await events_until_end(connection))[-1].response
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens == told_again.usage.input_tokens
    assert second.output_text == told_again.output_text


async def test_bad_input_is_an_error_event_that_names_the_field_and_the_connection_lives(openai: AsyncOpenAI) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input="x", temperature=7)
        bad = (await events_until_end(connection))[-1]
        assert bad.type == "error"
        assert bad.status == 400
        assert bad.error.param == "temperature"
        await connection.response.create(model="nobody", input="x")
        assert (await events_until_end(connection))[-1].status == 404
        await connection.response.create(model="demo", input="Say hi.", max_output_tokens=16)
        assert (await events_until_end(connection))[-1].type in {"response.completed", "response.incomplete"}


async def test_tools_are_refused_with_a_reason(openai: AsyncOpenAI) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input="x", tools=[{"type": "web_search"}])
        bad = (await events_until_end(connection))[-1]
    assert bad.status == 400
    assert bad.error.param == "tools"


async def test_closing_mid_answer_frees_everything(openai: AsyncOpenAI, demo_node: RunningNode) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="demo", input="Tell me a very long story about a ship.")
        async for event in connection:
            if event.type == "response.output_text.delta":
                break
    await demo_node.becomes_idle()
