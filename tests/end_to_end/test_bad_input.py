"""What a careless or hostile client sends to a real node: a typed answer, and the socket stays."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect

from protocol.wire import MSGPACK_SUBPROTOCOL
from tests.end_to_end.running_node import RunningNode


@pytest.fixture
async def socket(counting_node: RunningNode) -> AsyncIterator[ClientConnection]:
    async with connect(f"{counting_node.url}/v1/stream", proxy=None, max_size=None) as connection:
        await connection.recv()
        yield connection


async def answer(socket: ClientConnection, message: dict[str, Any] | str) -> dict[str, Any]:
    """The terminal event of one request."""
    await socket.send(message if isinstance(message, str) else json.dumps(message))
    while True:
        event: dict[str, Any] = json.loads(await socket.recv())
        if event["type"] in {"failed", "finished"}:
            return event


def generate(**fields: Any) -> dict[str, Any]:
    return {"type": "generate", "id": "r", "max_tokens": 2, **fields}


async def limit_of(node: RunningNode) -> int:
    models = json.loads(node.get("/v1/models")[1])
    return int(models["data"][0]["max_model_len"])


async def test_a_prompt_of_the_limit_less_one_gets_its_one_token(
    socket: ClientConnection, counting_node: RunningNode
) -> None:
    limit = await limit_of(counting_node)
    event = await answer(
        socket, {"type": "generate", "id": "r", "prompt_tokens": [5] * (limit - 1), "ignore_eos": True}
    )
    assert event["reason"] == "length"
    assert event["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("over", [0, 1])
async def test_a_prompt_of_the_limit_or_more_is_too_long(
    socket: ClientConnection, counting_node: RunningNode, over: int
) -> None:
    limit = await limit_of(counting_node)
    event = await answer(socket, {"type": "generate", "id": "r", "prompt_tokens": [5] * (limit + over)})
    assert event["code"] == "context_length_exceeded"
    assert str(limit + over) in event["message"].replace(",", "")
    assert str(limit) in event["message"].replace(",", "")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 2**31}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt_tokens": []}, "prompt_tokens"),
        ({"messages": []}, "messages"),
        ({"prompt_tokens": [49152]}, "prompt_tokens"),
        ({"prompt_tokens": [-1]}, "prompt_tokens"),
        ({"prompt": "x", "logit_bias": {"49152": 1}}, "logit_bias"),
        ({"prompt": "x", "stop_token_ids": [49152]}, "stop_token_ids"),
        ({"prompt": "x", "seed": 2**64}, "seed"),
        ({"prompt": "x", "seed": 2**63}, "seed"),
        ({"prompt": "x", "temperature": 2.5}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "nonsense": 1}, "nonsense"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, None),
    ],
)
async def test_a_bad_field_is_named(socket: ClientConnection, fields: dict[str, Any], param: str | None) -> None:
    event = await answer(socket, generate(**fields))
    assert event["code"] == "invalid_request"
    assert event["id"] == "r"
    if param is not None:
        assert event["param"].split("[")[0].split(".")[0] == param
    assert (await answer(socket, generate(prompt="still here")))["type"] == "finished"


async def test_a_nan_temperature_over_msgpack_is_refused(counting_node: RunningNode) -> None:
    async with connect(f"{counting_node.url}/v1/stream", proxy=None, subprotocols=[MSGPACK_SUBPROTOCOL]) as socket:  # type: ignore[list-item]  # websockets' Subprotocol is a str NewType
        await socket.recv()
        await socket.send(msgspec.msgpack.encode(generate(prompt="x", temperature=float("nan"))))
        event = msgspec.msgpack.decode(await socket.recv(decode=False))
    assert (event["code"], event["param"]) == ("invalid_request", "temperature")


@pytest.mark.parametrize(
    "frame",
    [
        "[" * 100_000,
        '{"type":"generate","id":"r","prompt":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"type":"generate","id":"r","prompt":"\\ud800"}',
        '{"type":"generate","id":"\\udfff","prompt":"x"}',
        "not json",
        "{}",
        '{"type":"unknown","id":"r"}',
        "null",
        "",
    ],
)
async def test_an_unreadable_frame_fails_and_the_socket_stays(socket: ClientConnection, frame: str) -> None:
    assert (await answer(socket, frame))["code"] == "invalid_request"
    assert (await answer(socket, generate(prompt="still here")))["type"] == "finished"


async def test_a_binary_frame_on_a_json_connection_fails(socket: ClientConnection) -> None:
    await socket.send(b"\x80")
    assert json.loads(await socket.recv())["code"] == "invalid_request"


async def test_a_live_id_cannot_be_used_twice(socket: ClientConnection) -> None:
    await socket.send(json.dumps(generate(prompt="x", max_tokens=2000, ignore_eos=True)))
    await socket.send(json.dumps(generate(prompt="x")))
    kinds = []
    while "finished" not in kinds:
        event = json.loads(await socket.recv())
        kinds.append(event.get("code", event["type"]))
    assert kinds.count("duplicate_id") == 1
    assert kinds.count("finished") == 1


async def test_a_request_larger_than_the_whole_pool_is_refused_at_once(socket: ClientConnection) -> None:
    event = await answer(socket, generate(prompt="x", max_tokens=2**31 - 1))
    assert event["code"] == "context_length_exceeded"
