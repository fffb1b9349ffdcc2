"""From tokens of the scheduler to frames of a client."""

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from protocol.messages import (
    CancelRequest,
    GrantCredit,
    RequestAccepted,
    RequestFailed,
    StopRequest,
    TokensGenerated,
)
from protocol.step import TokenLogprob, TopLogprob
from protocol.wire import MSGPACK_SUBPROTOCOL
from tests.actors.ingress.byte_model import EOS, tokens_of
from tests.actors.ingress.scripted import ScriptedScheduler, Served, hear, hear_end, say


async def test_tokens_become_text_and_one_terminal_event(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    assert (await hear(client))["type"] == "accepted"
    await scheduler.emit(submit, "Hi")
    assert await hear(client) == {"type": "tokens", "id": "a", "index": 0, "count": 2, "text": "Hi"}
    await scheduler.emit(submit, "!")
    assert await hear(client) == {"type": "tokens", "id": "a", "index": 2, "count": 1, "text": "!"}
    await scheduler.finish(submit)
    assert await hear(client) == {
        "type": "finished",
        "id": "a",
        "reason": "length",
        "usage": {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 3},
        "timing": {"queue_ms": 1.0, "ttft_ms": 2.0, "tpot_ms": 3.0, "total_ms": 4.0},
    }


async def test_half_a_character_waits_for_its_other_half(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", return_tokens=True)
    submit = await scheduler.accept()
    smile = tokens_of("a😀b")
    for token in smile:
        await scheduler.emit(submit, [token])
    await scheduler.finish(submit)
    frames, _ = await hear_end(client, "a")
    assert "".join(frame["text"] for frame in frames) == "a😀b"
    assert [token for frame in frames for token in frame["tokens"]] == smile
    for frame in frames:
        assert "�" not in frame["text"]
        assert len(frame["tokens"]) == frame["count"] == len(frame["text"].encode())
    assert [frame["index"] for frame in frames] == [0, 1, 5][: len(frames)]


async def test_what_is_left_of_a_character_is_flushed_at_the_end(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    await scheduler.emit(submit, tokens_of("é")[:1])
    await scheduler.finish(submit)
    frames, finished = await hear_end(client, "a")
    assert [(frame["text"], frame["count"]) for frame in frames] == [("�", 1)]
    assert finished["usage"]["completion_tokens"] == 1


async def test_the_end_token_counts_and_is_named(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    await scheduler.emit(submit, [*tokens_of("ok"), EOS])
    await scheduler.finish(submit, "stop", EOS)
    frames, finished = await hear_end(client, "a")
    assert sum(frame["count"] for frame in frames) == 3 == finished["usage"]["completion_tokens"]
    assert (finished["reason"], finished["stop"]) == ("stop", EOS)


async def test_token_id_zero_can_be_what_ended_it(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", prompt="p", stop_token_ids=[0])
    submit = await scheduler.accept()
    await scheduler.emit(submit, [0])
    await scheduler.finish(submit, "stop", 0)
    assert (await hear_end(client, "a"))[1]["stop"] == 0


async def test_a_stop_string_ends_the_stream_and_nothing_of_it_is_sent(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", stop=["END"])
    submit = await scheduler.accept()
    for letter in "go E":
        await scheduler.emit(submit, letter)
    await scheduler.emit(submit, "N")
    await scheduler.emit(submit, "D")
    assert await scheduler.next(StopRequest) == StopRequest(submit.request)
    await scheduler.emit(submit, "more")  # it was on its way
    await scheduler.finish(submit, "length")
    frames, finished = await hear_end(client, "a")
    assert "".join(frame["text"] for frame in frames) == "go "
    assert (finished["reason"], finished["stop"]) == ("stop", "END")
    assert finished["usage"]["completion_tokens"] == 6 == sum(frame["count"] for frame in frames)
    assert scheduler.told.empty()


async def test_logprobs_are_those_of_the_tokens_of_their_frame(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", logprobs=1, return_tokens=True)
    submit = await scheduler.accept()
    for token in tokens_of("xé"):
        await scheduler.emit(submit, [token], [TokenLogprob(token, -0.5, [TopLogprob(7, -1.5)])])
    await scheduler.finish(submit)
    frames, _ = await hear_end(client, "a")
    for frame in frames:
        assert [one["token"] for one in frame["logprobs"]] == frame["tokens"]
    assert frames[0]["logprobs"][0] == {
        "token": tokens_of("x")[0],
        "text": "x",
        "logprob": -0.5,
        "top": [{"token": 7, "text": "\x07", "logprob": -1.5}],
    }


async def test_a_step_repeated_by_a_new_scheduler_is_not_sent_twice(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    delta = scheduler.delta(submit, "ab")
    await scheduler.ingress.tell(TokensGenerated([delta]))
    await scheduler.ingress.tell(TokensGenerated([delta]))
    await scheduler.finish(submit)
    frames, _ = await hear_end(client, "a")
    assert "".join(frame["text"] for frame in frames) == "ab"


async def test_all_steps_of_one_tick_leave_in_one_frame_for_each_stream(
    server: Served, scheduler: ScriptedScheduler
) -> None:
    async with server.connect() as client:
        await say(client, "generate", id="a", prompt="p")
        await say(client, "generate", id="b", prompt="q")
        first, second = await scheduler.accept(), await scheduler.accept()
        for letter in "xyz":
            message = TokensGenerated([scheduler.delta(first, letter), scheduler.delta(second, letter)])
            assert scheduler.ingress.try_tell(message)
        await scheduler.finish(first)
        frames, _ = await hear_end(client, "a")
        assert [frame["text"] for frame in frames] == ["xyz"]


async def test_many_streams_share_a_socket(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    names = [f"s{number}" for number in range(64)]
    for name in names:
        await say(client, "generate", id=name, prompt=name)
    submits = [await scheduler.accept() for _ in names]
    for letter in "xyz":
        await scheduler.ingress.tell(TokensGenerated([scheduler.delta(submit, letter) for submit in submits]))
    for submit in submits:
        await scheduler.finish(submit)
    texts = dict.fromkeys(names, "")
    left = len(names)
    while left:
        event = await hear(client)
        if event["type"] == "tokens":
            texts[event["id"]] += event["text"]
        left -= event["type"] == "finished"
    assert set(texts.values()) == {"xyz"}


async def test_cancel_reaches_the_scheduler_and_its_answer_the_client(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    assert (await hear(client))["type"] == "accepted"
    await say(client, "cancel", id="a")
    assert await scheduler.next(CancelRequest) == CancelRequest(submit.request)
    await scheduler.finish(submit, "cancelled")
    assert (await hear(client))["reason"] == "cancelled"


async def test_a_cancel_never_overtakes_its_submit(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", prompt="p")
    await say(client, "cancel", id="a")
    await say(client, "ping", nonce=1)
    assert (await hear(client))["type"] == "pong"  # the cancel has been read
    submit = await scheduler.accept()
    assert await scheduler.next(CancelRequest) == CancelRequest(submit.request)


async def test_credit_is_passed_on(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    await say(client, "generate", id="a", prompt="p", credit=1)
    await say(client, "credit", id="a", tokens=2)
    await say(client, "credit", id="a", tokens=3)
    await say(client, "ping", nonce=1)
    assert (await hear(client))["type"] == "pong"
    submit = await scheduler.accept()
    assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 5)
    await say(client, "credit", id="a", tokens=4)
    assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 4)


async def test_half_a_character_does_not_use_up_a_clients_credit(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", credit=1)
    submit = await scheduler.accept()
    emoji = tokens_of("😀")
    for i in range(3):  # each of the first three bytes could be the last token the credit allows
        await scheduler.emit(submit, emoji[i : i + 1])
        assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 1)
    await scheduler.emit(submit, emoji[3:])
    await scheduler.finish(submit)
    frames, _ = await hear_end(client, "a")
    assert [(frame["count"], frame["text"]) for frame in frames] == [(4, "😀")]


async def test_credit_given_for_half_a_character_is_repaid_by_the_clients_next_grant(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", credit=1)
    submit = await scheduler.accept()
    emoji = tokens_of("😀")
    for i in range(3):
        await scheduler.emit(submit, emoji[i : i + 1])
        assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 1)
    await scheduler.emit(submit, emoji[3:])
    assert (await hear(client))["type"] == "accepted"
    assert (await hear(client))["count"] == 4
    await say(client, "credit", id="a", tokens=4)  # 5 granted in all, 4 used
    assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 1)


async def test_what_a_stop_string_holds_back_does_not_use_up_a_clients_credit(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p", credit=2, stop=["abcd"])
    submit = await scheduler.accept()
    await scheduler.emit(submit, "ab")
    assert await scheduler.next(GrantCredit) == GrantCredit(submit.request, 2)
    await scheduler.emit(submit, "xy")  # the client has it all: nothing more to grant
    await scheduler.finish(submit)
    frames, _ = await hear_end(client, "a")
    assert "".join(frame["text"] for frame in frames) == "abxy"
    assert scheduler.told.empty()


async def test_a_refusal_of_the_scheduler_is_the_clients(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    assert (await hear(client))["type"] == "accepted"
    await scheduler.ingress.tell(RequestFailed(submit.request, "overloaded", "queue is full", None, 500))
    failed = await hear(client)
    assert (failed["id"], failed["code"], failed["retry_after_ms"]) == ("a", "overloaded", 500)


async def test_a_name_is_free_again_after_its_end(client: ClientConnection, scheduler: ScriptedScheduler) -> None:
    for text in ("one", "two"):
        await say(client, "generate", id="a", prompt="p")
        submit = await scheduler.accept()
        await scheduler.emit(submit, text)
        await scheduler.finish(submit)
        frames, _ = await hear_end(client, "a")
        assert "".join(frame["text"] for frame in frames) == text


async def test_a_name_in_use_is_refused_and_the_running_one_goes_on(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    assert (await hear(client))["type"] == "accepted"
    await say(client, "generate", id="a", prompt="q")
    assert (await hear(client))["code"] == "duplicate_id"
    await scheduler.emit(submit, "x")
    assert (await hear(client))["text"] == "x"


async def test_closing_the_socket_cancels_its_requests(server: Served, scheduler: ScriptedScheduler) -> None:
    async with server.connect() as client:
        await say(client, "generate", id="a", prompt="p")
        submit = await scheduler.accept()
        await hear(client)
    assert await scheduler.next(CancelRequest) == CancelRequest(submit.request)


async def test_a_request_accepted_after_its_client_left_is_cancelled(scheduler: ScriptedScheduler) -> None:
    await scheduler.ingress.tell(RequestAccepted(12345))
    assert await scheduler.next(CancelRequest) == CancelRequest(12345)


async def test_msgpack_connections_speak_msgpack(server: Served, scheduler: ScriptedScheduler) -> None:
    async with server.connect(subprotocols=[MSGPACK_SUBPROTOCOL]) as client:
        assert client.subprotocol == MSGPACK_SUBPROTOCOL
        assert msgspec.msgpack.decode(await client.recv(decode=False))["type"] == "hello"
        await client.send(msgspec.msgpack.encode({"type": "generate", "id": "a", "prompt": "p"}))
        submit = await scheduler.accept()
        await scheduler.emit(submit, "x")
        assert msgspec.msgpack.decode(await client.recv(decode=False))["type"] == "accepted"
        assert msgspec.msgpack.decode(await client.recv(decode=False))["text"] == "x"
        await client.send("{}")
        failed = msgspec.msgpack.decode(await client.recv(decode=False))
        assert (failed["type"], failed.get("id")) == ("failed", None)


async def test_a_lane_of_the_responses_dialect_begins_its_next_request_by_itself(
    server: Served, scheduler: ScriptedScheduler
) -> None:
    async with server.connect("/v1/responses") as client:
        for text in ("one", "two"):
            await say(client, "response.create", model="bytes", input=text)
        first = await scheduler.accept()
        await scheduler.emit(first, "x")
        await scheduler.finish(first)
        second = await scheduler.accept()
        assert second.prompt_tokens == tokens_of("u:two\na:")


async def test_a_conversation_of_the_responses_dialect_goes_on_over_one_socket(
    server: Served, scheduler: ScriptedScheduler
) -> None:
    async with server.connect("/v1/responses") as client:
        await say(client, "response.create", model="bytes", input="one")
        first = await scheduler.accept()
        await scheduler.emit(first, "x")
        await scheduler.finish(first, "stop", EOS)
        while (event := await hear(client))["type"] != "response.completed":
            pass
        previous = event["response"]["id"]
        await say(client, "response.create", model="bytes", input="two", previous_response_id=previous)
        assert (await scheduler.accept()).prompt_tokens == tokens_of("u:one\na:x\nu:two\na:")


@pytest.mark.parametrize("prompt", ["\ud800", "a\udfffb"])
async def test_a_lone_surrogate_is_one_requests_error(
    client: ClientConnection, scheduler: ScriptedScheduler, prompt: str
) -> None:
    await say(client, "generate", id="a", prompt=prompt)
    assert (await hear(client))["code"] == "invalid_request"
    await say(client, "generate", id="b", prompt="fine")
    await scheduler.accept()
