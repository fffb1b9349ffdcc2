"""The demo model through the real node says what `transformers` says: alone, in a crowd, and with prefix hits."""

import asyncio
import json
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from websockets.asyncio.client import ClientConnection, connect

from cuda.models.folder import prepare_model
from tests.end_to_end.running_node import RunningNode

OUTPUT_LEN = 16
WORDS = "the harbour was quiet when a man with 12 + 34 coats threw rope to pier def f(x): 日本語 😀 and left".split(" ")
LENGTHS = [1, 2, 3, 5, 8, 13, 17, 21, 34, 47, 55, 64, 80, 99, 128, 150, 200, 260, 400, 700]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(prepare_model("demo"))


@cache
def prompts() -> list[list[int]]:
    """20 prompts of varied length, the longest longer than a chunk."""
    generator = torch.Generator().manual_seed(7)
    texts = [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=generator)) for n in LENGTHS]
    return [tokenizer()(text)["input_ids"][:n] for text, n in zip(texts, LENGTHS, strict=True)]


@cache
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(prepare_model("demo"), dtype=torch.float32)


def greedy_after(prompt: list[int], output: list[int]) -> list[int]:
    """What transformers would say at each position of `output`: equal to it exactly if it is its own greedy output."""
    with torch.inference_mode():
        logits = reference()(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    greedy: list[int] = logits.argmax(-1).tolist()
    return greedy


@pytest.fixture(scope="session")
def expected(demo_node: RunningNode) -> list[list[int]]:
    """Every prompt alone, with nothing cached; checked against transformers token by token."""

    async def alone() -> list[list[int]]:
        return [(await outputs(demo_node, [prompt], cache_salt="alone"))[0] for prompt in prompts()]

    found = asyncio.run(alone())
    assert found == [greedy_after(prompt, output) for prompt, output in zip(prompts(), found, strict=True)]
    return found


async def outputs(node: RunningNode, chosen: list[list[int]], **fields: Any) -> list[list[int]]:
    """Output tokens of all `chosen` prompts, sent at once on one socket."""
    async with connect(f"{node.url}/v1/stream", proxy=None, max_size=None) as socket:
        for i, prompt in enumerate(chosen):
            message = {"type": "generate", "id": f"{i}", "prompt_tokens": prompt, "max_tokens": OUTPUT_LEN}
            await socket.send(
                json.dumps({**message, "temperature": 0, "ignore_eos": True, "return_tokens": True, **fields})
            )
        return await collected(socket, len(chosen))


async def collected(socket: ClientConnection, count: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    left = count
    while left:
        event = json.loads(await socket.recv())
        assert event["type"] != "failed", event
        if event["type"] == "tokens":
            assert event["index"] == len(tokens[int(event["id"])])
            tokens[int(event["id"])] += event["tokens"]
        left -= event["type"] == "finished"
    return tokens


async def test_alone_every_prompt_continues_as_in_transformers(expected: list[list[int]]) -> None:
    assert [len(output) for output in expected] == [OUTPUT_LEN] * len(LENGTHS)


async def test_in_one_full_batch_nobody_changes(demo_node: RunningNode, expected: list[list[int]]) -> None:
    assert await outputs(demo_node, prompts(), cache_salt="batch") == expected


async def test_prefix_hits_change_nothing(demo_node: RunningNode, expected: list[list[int]]) -> None:
    hits = demo_node.metric("prefix_cache_hits_total")
    for _ in range(2):
        assert await outputs(demo_node, prompts(), cache_salt="hits") == expected
    assert demo_node.metric("prefix_cache_hits_total") > hits


async def test_two_conversations_at_once_keep_apart(demo_node: RunningNode, expected: list[list[int]]) -> None:
    first, second = await asyncio.gather(
        outputs(demo_node, prompts()[:10]), outputs(demo_node, list(reversed(prompts()[:10])))
    )
    assert first == expected[:10]
    assert second == list(reversed(expected[:10]))


async def test_a_seed_draws_the_same_tokens_again(demo_node: RunningNode) -> None:
    fields = {"temperature": 1.0, "seed": 1234}
    alone = await outputs(demo_node, [prompts()[9]], **fields)
    crowd = await outputs(demo_node, [prompts()[9], *prompts()[:8]], **fields)
    assert alone[0] == crowd[0]
    assert await outputs(demo_node, [prompts()[9]], temperature=1.0, seed=1235) != alone


async def test_characters_split_over_tokens_arrive_whole(demo_node: RunningNode) -> None:
    """A bias leaves the model only the bytes of emoji and CJK: what arrives is the decoding, never half a character."""
    ids = sorted(set(tokenizer()("😀👩‍👩‍👧‍👦日本語です½")["input_ids"]))
    message = {"type": "generate", "id": "r", "prompt": "x", "logit_bias": {str(i): 100 for i in ids}, "seed": 3}
    async with connect(f"{demo_node.url}/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps({**message, "max_tokens": 120, "temperature": 1.5, "return_tokens": True}))
        text, tokens = "", []
        while (event := json.loads(await socket.recv()))["type"] != "finished":
            assert event["type"] != "failed", event
            text += event.get("text", "")
            tokens += event.get("tokens", [])
    assert len(tokens) == 120
    assert text == tokenizer().decode(tokens, skip_special_tokens=True)


async def test_no_prefix_of_a_stop_string_leaks(demo_node: RunningNode, expected: list[list[int]]) -> None:
    whole = tokenizer().decode(expected[11], skip_special_tokens=True)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 12]
    message = {"type": "generate", "id": "r", "prompt_tokens": prompts()[11], "max_tokens": OUTPUT_LEN, "stop": [stop]}
    async with connect(f"{demo_node.url}/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps({**message, "temperature": 0, "ignore_eos": True}))
        text = ""
        while (event := json.loads(await socket.recv()))["type"] != "finished":
            text += event.get("text", "")
    assert (event["reason"], event["stop"]) == ("stop", stop)
    assert text == whole[: whole.index(stop)]
