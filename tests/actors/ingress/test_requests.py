"""What a client asks, as the scheduler gets it; and what it may not ask."""

from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from actors.ingress.config import IngressConfig
from actors.ingress.requests import reading_size
from protocol.messages import Submit
from protocol.wire import ChatMessage, Generate
from tests.actors.ingress.byte_model import EOS, MAX_MODEL_LEN, VOCAB_SIZE, tokens_of
from tests.actors.ingress.scripted import ScriptedScheduler, hear, say


async def test_a_prompt_is_tokenized_and_defaults_come_from_the_model(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="héllo")
    submit = await scheduler.accept()
    assert submit.prompt_tokens == tokens_of("héllo")
    assert submit.sampling.max_tokens == MAX_MODEL_LEN - len(tokens_of("héllo"))
    assert (submit.sampling.temperature, submit.sampling.top_p, submit.sampling.top_k) == (0.6, 0.9, 40)
    assert submit.credit == 4096
    assert await hear(client) == {"type": "accepted", "id": "a", "prompt_tokens": 6}


async def test_messages_go_through_the_chat_template(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", messages=[{"role": "user", "content": "hi"}])
    assert (await scheduler.accept()).prompt_tokens == tokens_of("u:hi\na:")


async def test_every_field_reaches_the_scheduler(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(
        client,
        "generate",
        id="a",
        prompt_tokens=[1, 2],
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"3": -100},
        seed=9,
        stop_token_ids=[4],
        ignore_eos=True,
        min_tokens=2,
        logprobs=1,
        slo={"ttft_ms": 100},
        priority=3,
        cache_salt="s",
        credit=0,
    )
    submit = await scheduler.accept()
    sampling = submit.sampling
    assert sampling.max_tokens == 7
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert (sampling.logit_bias, sampling.seed, sampling.stop_token_ids) == ({3: -100}, 9, (4,))
    assert (sampling.ignore_eos, sampling.min_tokens, sampling.logprobs) == (True, 2, 1)
    assert (submit.priority, submit.cache_salt, submit.credit, submit.tenant) == (3, "s", 0, "")
    assert submit.slo is not None
    assert submit.slo.ttft_ms == 100


async def test_a_long_prompt_is_tokenized_off_the_loop_and_frames_keep_their_order(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="long", prompt="x" * 100_000)
    await say(client, "generate", id="short", prompt="y")
    failed = await hear(client)
    assert (failed["id"], failed["code"]) == ("long", "context_length_exceeded")
    assert "100,000 tokens; limit is 200" in failed["message"]
    assert (await scheduler.accept()).prompt_tokens == tokens_of("y")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt_tokens": [VOCAB_SIZE]}, "invalid_request", "prompt_tokens"),
        ({"prompt": "a", "logit_bias": {str(VOCAB_SIZE): 1}}, "invalid_request", "logit_bias"),
        ({"prompt": "a", "stop_token_ids": [VOCAB_SIZE]}, "invalid_request", "stop_token_ids"),
        ({"prompt": "a", "resume_tokens": [VOCAB_SIZE]}, "invalid_request", "resume_tokens"),
        ({"prompt": "a", "resumable": True}, "invalid_request", "resumable"),
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt_tokens": []}, "invalid_request", "prompt_tokens"),
        ({"prompt": "a", "max_tokens": MAX_MODEL_LEN}, "context_length_exceeded", "max_tokens"),
        ({"prompt": "x" * MAX_MODEL_LEN}, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * (MAX_MODEL_LEN + 1)}, "context_length_exceeded", "prompt"),
        ({"prompt": "a", "min_tokens": MAX_MODEL_LEN}, "invalid_request", "min_tokens"),
        ({"prompt": "a", "max_tokens": 1, "resume_tokens": [1, 2]}, "invalid_request", "resume_tokens"),
        ({"prompt": "a", "model": "other"}, "model_not_found", "model"),
    ],
)
async def test_what_the_model_cannot_take_is_refused_by_field(
    client: ClientConnection, scheduler: ScriptedScheduler, fields: dict[str, Any], code: str, param: str
) -> None:
    await say(client, "generate", id="a", **fields)
    failed = await hear(client)
    assert (failed["type"], failed["id"], failed["code"], failed["param"]) == ("failed", "a", code, param)
    assert scheduler.told.empty()


async def test_a_prompt_one_below_the_limit_has_room_for_one_token(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="x" * (MAX_MODEL_LEN - 1))
    assert (await scheduler.accept()).sampling.max_tokens == 1


async def test_resume_of_a_dropped_stream_is_expired(client: ClientConnection) -> None:
    await say(client, "resume", id="a", resume_token="t", after=0)  # noqa: S106 - none that is valid
    failed = await hear(client)
    assert (failed["id"], failed["code"]) == ("a", "resume_expired")


async def test_generation_goes_on_after_resume_tokens(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", prompt="p", resume_tokens=tokens_of("wör"), stop=["rld"], return_tokens=True)
    submit = await scheduler.accept()
    assert submit.output_tokens == tokens_of("wör")
    assert (await hear(client))["type"] == "accepted"
    await scheduler.emit(submit, "ky")
    tokens = await hear(client)
    assert (tokens["index"], tokens["count"], tokens["text"]) == (4, 2, "rky")


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({"resume_tokens": [*tokens_of("ab"), EOS]}, "stop", EOS),
        ({"resume_tokens": tokens_of("ab"), "stop": ["b"]}, "stop", "b"),
        ({"resume_tokens": tokens_of("ab"), "max_tokens": 2}, "length", None),
        ({"resume_tokens": tokens_of("ab"), "stop_token_ids": tokens_of("b")}, "stop", tokens_of("b")[0]),
    ],
)
async def test_a_whole_output_as_resume_tokens_ends_at_once(
    client: ClientConnection, scheduler: ScriptedScheduler, fields: dict[str, Any], reason: str, stop: object
) -> None:
    await say(client, "generate", id="a", prompt="p", **fields)
    assert (await hear(client))["type"] == "accepted"
    finished = await hear(client)
    assert (finished["type"], finished["reason"], finished.get("stop")) == ("finished", reason, stop)
    assert finished["usage"]["completion_tokens"] == len(fields["resume_tokens"])
    assert scheduler.told.empty()


async def test_a_request_of_the_responses_dialect_arrives_too(scheduler: ScriptedScheduler, server: Any) -> None:
    async with server.connect("/v1/responses") as client:
        await say(client, "response.create", model="bytes", input="hi")
        submit: Submit = await scheduler.accept()
        assert submit.prompt_tokens == tokens_of("u:hi\na:")
        assert (await hear(client))["type"] == "response.created"


def test_a_crowd_of_empty_messages_is_as_much_to_read_as_a_long_text() -> None:
    empty = ChatMessage(role="user", content="")
    assert reading_size(Generate(id="a", messages=[empty] * 1000)) > IngressConfig().inline_chars
    assert reading_size(Generate(id="a", messages=[ChatMessage(role="user", content="Hi")])) < 100
    assert reading_size(Generate(id="a", prompt="Hi")) == 2
