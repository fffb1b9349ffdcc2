"""How a node ends: clean drains, impatient operators, and parts that die."""

import asyncio
import json
import os
import signal

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.running_node import RunningNode, running_node

FLAGS = ("--devices", "counting", "--num-pages", "4096")
SLOW = {"TOKENSTAGE_COUNTING_STEP_MS": "5"}


async def streams(node: RunningNode, count: int, max_tokens: int) -> ClientConnection:
    """One socket with `count` requests running; every one has produced a token."""
    socket = await connect(f"{node.url}/v1/stream", proxy=None, max_size=None)
    for i in range(count):
        message = {"type": "generate", "id": f"{i}", "prompt": f"go {i}", "max_tokens": max_tokens, "ignore_eos": True}
        await socket.send(json.dumps(message))
    started: set[str] = set()
    while len(started) < count:
        event = json.loads(await socket.recv())
        if event["type"] == "tokens":
            started.add(event["id"])
    return socket


async def test_sigterm_lets_twenty_streams_finish_and_exits_0() -> None:
    with running_node(*FLAGS, env=SLOW) as node:
        socket = await streams(node, 20, max_tokens=200)
        node.process.send_signal(signal.SIGTERM)
        ends, draining = {}, False
        async for frame in socket:
            event = json.loads(frame)
            draining = draining or event["type"] == "draining"
            if event["type"] in {"finished", "failed"}:
                ends[event["id"]] = event
        assert draining
        assert len(ends) == 20
        assert all(event["usage"]["completion_tokens"] == 200 for event in ends.values())
        assert socket.close_code == 1001
        assert await asyncio.to_thread(node.process.wait, 20) == 0


async def test_a_second_sigterm_ends_at_once() -> None:
    with running_node(*FLAGS, env=SLOW) as node:
        socket = await streams(node, 4, max_tokens=8000)
        node.process.send_signal(signal.SIGTERM)
        while json.loads(await socket.recv())["type"] != "draining":
            pass
        node.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(node.process.wait, 10)
        await socket.close()
        assert not any(psutil.pid_exists(pid) for pid in node.actors.values())


@pytest.mark.parametrize("actor", ["scheduler", "worker:0"])
async def test_a_killed_actor_ends_its_requests_typed_and_the_node_with_1(actor: str) -> None:
    with running_node(*FLAGS, env=SLOW) as node:
        socket = await streams(node, 4, max_tokens=8000)
        os.kill(node.actors[actor], signal.SIGKILL)
        failed = []
        async with asyncio.timeout(20):
            async for frame in socket:
                event = json.loads(frame)
                if event["type"] == "failed":
                    failed.append((event["id"], event["code"]))
        assert sorted(failed) == [(f"{i}", "internal") for i in range(4)]
        assert await asyncio.to_thread(node.process.wait, 20) == 1
        assert not any(psutil.pid_exists(pid) for pid in node.actors.values())


async def test_children_die_with_a_killed_node() -> None:
    with running_node(*FLAGS) as node:
        children = [psutil.Process(pid) for pid in node.actors.values()]
        node.process.kill()
        node.process.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 10)
        assert not alive
