"""Tensor-parallel groups in a real node: ranks answer as one, and fall as one."""

import asyncio
import json
import os
import signal
import time

from websockets.asyncio.client import connect

from cuda.devices.counting import expected_output
from cuda.models.folder import prepare_model, read_spec
from tests.end_to_end.running_node import RunningNode, running_node
from tests.end_to_end.test_same_text import outputs, prompts

TIMEOUT_S = 2.0
"""For another rank."""
COUNTING = (
    "--topology",
    "mixed=counting:0,counting:1;mixed=counting:2",
    "--num-pages",
    "512",
    "--peer-timeout",
    f"{TIMEOUT_S}",
)
CPU = ("--devices", "cpu:0,cpu:1", "--tp", "2", "--num-pages", "512", "--peer-timeout", f"{TIMEOUT_S}")
PROMPTS = [list(range(first, first + 40)) for first in range(0, 320, 20)]


async def ends_after(node: RunningNode, actor: str, fault: signal.Signals, max_tokens: int = 8000) -> float:
    """Send `fault` to an actor in the middle of four streams; all must fail typed. Seconds until the last one has."""
    async with connect(f"{node.url}/v1/stream", proxy=None, max_size=None) as socket:
        for name in "abcd":
            message = {"type": "generate", "id": name, "prompt_tokens": [ord(name)], "max_tokens": max_tokens}
            await socket.send(json.dumps({**message, "ignore_eos": True}))
        started: set[str] = set()
        while len(started) < 4:
            event = json.loads(await socket.recv())
            if event["type"] == "tokens":
                started.add(event["id"])
        os.kill(node.actors[actor], fault)
        began = time.monotonic()
        ends = [event async for frame in socket if (event := json.loads(frame))["type"] in {"finished", "failed"}]
    assert sorted((end["id"], end["code"]) for end in ends) == [(name, "internal") for name in "abcd"]
    return time.monotonic() - began


async def test_counting_ranks_answer_as_one_beside_a_replica_until_one_is_stopped() -> None:
    vocab_size = read_spec(prepare_model("demo")).vocab_size
    with running_node(*COUNTING, env={"TOKENSTAGE_COUNTING_STEP_MS": "5"}) as node:
        expected = [expected_output(prompt, 16, vocab_size) for prompt in PROMPTS]
        assert await outputs(node, PROMPTS) == expected
        assert node.metric("kv_pages_total") == 2 * 512  # of groups, not of workers
        assert await ends_after(node, "worker:1", signal.SIGSTOP) < TIMEOUT_S + 5
        assert await asyncio.to_thread(node.process.wait, 20) == 1
        assert "no answer of rank 1" in node.log.read_text()


async def test_two_cpu_ranks_say_what_one_says_until_one_is_killed(demo_node: RunningNode) -> None:
    with running_node(*CPU) as node:
        assert "devices cpu:0,cpu:1, tp 2" in node.log.read_text()
        assert "query heads 6-8, KV heads 2" in node.log.read_text()
        chosen = prompts()[:16:3]
        assert await outputs(node, chosen) == await outputs(demo_node, chosen, cache_salt="one")
        assert await ends_after(node, "worker:0", signal.SIGKILL) < TIMEOUT_S + 5
        assert await asyncio.to_thread(node.process.wait, 20) == 1


async def test_a_stopped_cpu_rank_is_missed_by_the_other() -> None:
    with running_node(*CPU) as node:
        assert await ends_after(node, "worker:1", signal.SIGSTOP) < TIMEOUT_S + 5
        assert await asyncio.to_thread(node.process.wait, 20) == 1
        assert "rank 0 waited" in node.log.read_text()
