import asyncio
import gc
import ssl
import subprocess
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from client import (
    APIConnectionError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    Client,
    ConflictError,
    InternalServerError,
    NotFoundError,
    OverloadedError,
    Reconnect,
    Timeouts,
)
from protocol.messages import Usage
from protocol.wire import (
    MAX_STOP_LENGTH,
    Accepted,
    Cancel,
    Credit,
    Draining,
    Failed,
    Finished,
    Generate,
    Resume,
    Tokens,
    WireLogprob,
)
from tests.client.fake_server import FakeServer, Peer, finished, hello, tokens

RESUME_KEY = "3f1c"
QUICK = Reconnect(max_attempts=5, base_s=0.001, cap_s=0.001)


async def answer_hello(peer: Peer) -> None:
    """Every request gets "Hel", "lo" and the end, until the client goes."""
    while True:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "Hel"), tokens(generate, 1, "l", "o"), finished(generate, 3))


async def stay(peer: Peer) -> None:
    """Accept and say nothing more."""
    await peer.accept()
    await peer.until_closed()


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_stream_yields_text_pieces_and_ends_with_a_result(encoding: Any) -> None:
    async with (
        FakeServer(answer_hello) as server,
        Client(server.url, encoding=encoding) as client,
        client.stream(messages=[{"role": "user", "content": "Hi"}], max_tokens=8) as stream,
    ):
        assert [text async for text in stream] == ["Hel", "lo"]
    assert stream.result.text == "Hello"
    assert stream.result.tokens == [100, 101, 102]
    assert stream.result.num_tokens == 3
    assert stream.result.finish_reason == "stop"
    assert stream.result.usage == Usage(prompt_tokens=3, completion_tokens=3)
    assert stream.result.timing.ttft_ms == 1.0


async def test_generate_returns_the_whole_result_and_events_carry_the_ids() -> None:
    async with FakeServer(answer_hello) as server, Client(server.url) as client:
        assert (await client.generate(prompt="Hi")).text == "Hello"
        async with client.stream(prompt="Hi", id="mine") as stream:
            events = [type(event).__name__ async for event in stream.events()]
    assert events == ["Accepted", "Tokens", "Tokens", "Finished"]
    assert stream.result.request_id == "mine"


async def test_fields_reach_the_server_as_they_were_given() -> None:
    seen = []

    async def script(peer: Peer) -> None:
        seen.append(generate := await peer.accept())
        await peer.send(finished(generate, 0))

    async with FakeServer(script) as server, Client(server.url, resume=False) as client:
        await client.generate(prompt_tokens=(1, 2), temperature=0, stop=["x"], logit_bias={5: -1}, slo={"ttft_ms": 9})
    (generate,) = seen
    assert (generate.prompt_tokens, generate.temperature, generate.stop) == ([1, 2], 0, ["x"])
    assert (generate.logit_bias, generate.slo) == ({5: -1}, generate.slo)
    assert generate.slo is not None
    assert generate.slo.ttft_ms == 9
    assert (generate.return_tokens, generate.seed) == (False, None)


async def test_many_streams_share_one_socket() -> None:
    async def script(peer: Peer) -> None:
        generates = [await peer.accept() for _ in range(20)]
        for index in range(3):
            await peer.send(*(tokens(generate, index, generate.prompt or "") for generate in reversed(generates)))
        await peer.send(*(finished(generate, 3) for generate in generates))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        results = await asyncio.gather(*(client.generate(prompt=f"{number}.") for number in range(20)))
    assert [result.text for result in results] == [f"{number}." * 3 for number in range(20)]
    assert server.num_connections == 1


async def test_logprobs_are_collected_in_order() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        for index in range(2):
            logprobs = [WireLogprob(token=index, logprob=-0.5)]
            await peer.send(Tokens(id=generate.id, index=index, count=1, text="a", tokens=[index], logprobs=logprobs))
        await peer.send(finished(generate, 2))

    async with FakeServer(script) as server, Client(server.url) as client:
        result = await client.generate(prompt="Hi", logprobs=0)
    assert [one.token for one in result.logprobs] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "nonsense": 1}, "nonsense"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "seed": 2**64}, "seed"),
        ({"prompt": "a", "credit": 0}, "credit"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "prompt_tokens": [1]}, "prompt_tokens"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({}, "messages"),
    ],
)
async def test_bad_fields_are_refused_before_anything_is_sent(fields: dict[str, Any], param: str) -> None:
    async with Client("ws://127.0.0.1:1") as client:
        with pytest.raises(BadRequestError) as caught:
            client.stream(**fields)
    assert caught.value.param == param
    assert caught.value.code == "invalid_request"


async def test_a_text_that_is_no_unicode_is_a_bad_request() -> None:
    async with FakeServer(answer_hello) as server, Client(server.url) as client:
        with pytest.raises(BadRequestError, match="Unicode"):
            await client.generate(prompt="\ud800")
        assert (await client.generate(prompt="fine")).text == "Hello"


async def test_a_request_larger_than_the_server_takes_is_refused_alone() -> None:
    async with FakeServer(answer_hello, greeting=hello(max_message_bytes=500)) as server, Client(server.url) as client:
        with pytest.raises(BadRequestError, match="limit is 500"):
            await client.generate(prompt="x" * 500)
        assert (await client.generate(prompt="x")).text == "Hello"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request", BadRequestError),
        ("context_length_exceeded", BadRequestError),
        ("model_not_found", NotFoundError),
        ("slo_unattainable", OverloadedError),
        ("draining", OverloadedError),
        ("internal", InternalServerError),
    ],
)
async def test_a_failed_request_raises_the_error_of_its_code(code: Any, kind: type[Exception]) -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Failed(id=generate.id, code=code, message="no", param="model"))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        with pytest.raises(kind) as caught:
            await client.generate(prompt="Hi", id="r1")
    error: Any = caught.value
    assert (error.code, error.param, error.request_id, str(error)) == (code, "model", "r1", "no")


async def test_an_id_that_is_live_is_a_conflict_and_leaves_the_first_stream_alone() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.expect(Credit)
        await peer.send(finished(generate, 0))

    async with (
        FakeServer(script) as server,
        Client(server.url) as client,
        client.stream(prompt="a", id="same") as stream,
    ):
        with pytest.raises(ConflictError):
            await client.generate(prompt="b", id="same")
        await client._live.send(Credit(id="same", tokens=1))  # the script goes on only if no cancel came before
        assert [text async for text in stream] == []
    assert stream.result.finish_reason == "stop"


async def test_leaving_a_stream_early_cancels_it_and_keeps_what_was_read() -> None:
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "Hel"))
        assert (await peer.expect(Cancel)).id == generate.id
        await peer.send(finished(generate, 1, "cancelled"))
        cancelled.set()
        await answer_hello(peer)

    async with FakeServer(script) as server, Client(server.url) as client:
        async with client.stream(prompt="Hi", id="x") as stream:
            async for _ in stream:
                break
        await cancelled.wait()
        assert (stream.result.text, stream.result.finish_reason) == ("Hel", "cancelled")
        assert (await client.generate(prompt="Hi")).text == "Hello"
        assert client._live._streams == {}


async def test_a_cancelled_task_cancels_its_request() -> None:
    accepted, cancelled = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        accepted.set()
        await peer.expect(Cancel)
        await peer.send(finished(generate, 0, "cancelled"))
        cancelled.set()
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        task = asyncio.create_task(client.generate(prompt="Hi"))
        await accepted.wait()
        task.cancel()
        await cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_dropped_connection_continues_exactly_where_it_broke() -> None:
    resumed = []

    async def break_after_two(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "a"), tokens(generate, 1, "b"))
        await peer.expect(Credit)  # both tokens have arrived at the client
        peer.drop()

    async def go_on(peer: Peer) -> None:
        resumed.append(generate := await peer.accept())
        await peer.send(tokens(generate, 2, "c", "d"), finished(generate, 4))
        await peer.until_closed()

    async with (
        FakeServer(break_after_two, go_on) as server,
        Client(server.url, reconnect=QUICK) as client,
        client.stream(prompt="Hi", credit=4, max_tokens=9) as stream,
    ):
        assert "".join([text async for text in stream]) == "abcd"
    (generate,) = resumed
    assert generate.resume_tokens == [100, 101]
    assert (generate.prompt, generate.max_tokens, generate.credit) == ("Hi", 9, 4)
    assert generate.seed is not None  # the draw goes on as it began
    assert stream.result.tokens == [100, 101, 102, 103]


async def test_a_stream_with_a_resume_token_is_resumed_by_it() -> None:
    async def first(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Accepted(id=generate.id, prompt_tokens=3, resume_token=RESUME_KEY), tokens(generate, 0, "a"))
        await peer.expect(Credit)
        peer.drop()

    async def second(peer: Peer) -> None:
        resume = await peer.expect(Resume)
        assert (resume.resume_token, resume.after) == (RESUME_KEY, 1)
        generate = Generate(id=resume.id, prompt="", return_tokens=True)
        await peer.send(tokens(generate, 1, "b"), finished(generate, 2))

    async with FakeServer(first, second) as server, Client(server.url, reconnect=QUICK) as client:
        result = await client.generate(prompt="Hi", resumable=True, credit=2)
    assert result.text == "ab"


async def test_an_expired_resume_token_falls_back_to_the_tokens_held() -> None:
    async def first(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Accepted(id=generate.id, prompt_tokens=3, resume_token=RESUME_KEY), tokens(generate, 0, "a"))
        await peer.expect(Credit)
        peer.drop()

    async def second(peer: Peer) -> None:
        resume = await peer.expect(Resume)
        await peer.send(Failed(id=resume.id, code="resume_expired", message="too late"))
        generate = await peer.accept()
        assert generate.resume_tokens == [100]
        await peer.send(tokens(generate, 1, "b"), finished(generate, 2))

    async with FakeServer(first, second) as server, Client(server.url, reconnect=QUICK) as client:
        result = await client.generate(prompt="Hi", resumable=True, credit=2)
    assert result.text == "ab"


async def test_a_stream_whose_end_alone_was_lost_asks_for_the_end() -> None:
    async def first(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "a"), tokens(generate, 1, "b"))
        await peer.expect(Credit)
        peer.drop()

    async def second(peer: Peer) -> None:
        generate = await peer.accept()
        assert (generate.resume_tokens, generate.max_tokens) == ([100, 101], 2)
        await peer.send(finished(generate, 2, "length"))
        await peer.until_closed()

    async with FakeServer(first, second) as server, Client(server.url, reconnect=QUICK) as client:
        result = await client.generate(prompt="Hi", max_tokens=2, credit=4)
    assert (result.text, result.finish_reason, result.usage.completion_tokens) == ("ab", "length", 2)


async def test_without_resumption_a_stream_that_had_begun_fails_and_one_that_had_not_is_asked_again() -> None:
    async def first(peer: Peer) -> None:
        begun = await peer.accept()
        await peer.accept()
        await peer.send(tokens(begun, 0, "a"))
        await peer.expect(Credit)
        peer.drop()

    async with FakeServer(first, answer_hello) as server, Client(server.url, reconnect=QUICK, resume=False) as client:
        begun, fresh = await asyncio.gather(
            client.generate(prompt="1", credit=2), client.generate(prompt="2"), return_exceptions=True
        )
    assert isinstance(begun, APIConnectionError)
    assert not isinstance(fresh, BaseException)
    assert fresh.text == "Hello"


async def test_reconnection_gives_up_after_its_attempts() -> None:
    async def drop(peer: Peer) -> None:
        await peer.accept()
        peer.drop()

    async with FakeServer(drop) as server, Client(server.url, reconnect=QUICK) as client:
        with pytest.raises(APIConnectionError) as caught:
            await client.generate(prompt="Hi", id="r7")
    assert server.num_connections == 1 + QUICK.max_attempts
    assert caught.value.request_id == "r7"


async def test_a_close_by_policy_is_final() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.socket.close(1008, "key withdrawn")

    async with FakeServer(script) as server, Client(server.url, reconnect=QUICK) as client:
        with pytest.raises(AuthenticationError, match="key withdrawn"):
            await client.generate(prompt="Hi")
    assert server.num_connections == 1


async def test_an_idle_client_reconnects_only_when_it_is_used() -> None:
    closed = asyncio.Event()

    async def once(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(finished(generate, 0))
        await peer.socket.close(1001)
        closed.set()

    async with FakeServer(once, answer_hello) as server, Client(server.url, reconnect=QUICK) as client:
        await client.generate(prompt="Hi")
        await closed.wait()
        assert server.num_connections == 1
        assert (await client.generate(prompt="Hi")).text == "Hello"


async def test_overloaded_is_retried_after_the_hint_at_most_twice() -> None:
    num_asked = 0

    async def busy(peer: Peer) -> None:
        nonlocal num_asked
        while True:
            generate = await peer.expect(Generate)
            num_asked += 1
            await peer.send(Failed(id=generate.id, code="overloaded", message="full", retry_after_ms=1))

    async with FakeServer(busy) as server, Client(server.url) as client:
        with pytest.raises(OverloadedError) as caught:
            await client.generate(prompt="Hi")
    assert num_asked == 3
    assert caught.value.retry_after_ms == 1


async def test_a_retry_that_is_accepted_answers_as_if_nothing_had_been() -> None:
    async def busy_once(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Failed(id=generate.id, code="overloaded", message="full", retry_after_ms=0))
        await answer_hello(peer)

    async with FakeServer(busy_once) as server, Client(server.url) as client:
        assert (await client.generate(prompt="Hi")).text == "Hello"


async def test_overloaded_after_the_first_token_is_not_retried() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "a"))
        await peer.send(Failed(id=generate.id, code="overloaded", message="full", retry_after_ms=0))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        with pytest.raises(OverloadedError):
            await client.generate(prompt="Hi")


async def test_a_hint_beyond_the_timeout_is_not_waited_for() -> None:
    async def busy(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Failed(id=generate.id, code="overloaded", message="full", retry_after_ms=3_600_000))
        await peer.until_closed()

    async with FakeServer(busy) as server, Client(server.url) as client:
        with pytest.raises(OverloadedError):
            await client.generate(prompt="Hi")


async def test_a_slow_reader_holds_back_its_own_stream_only() -> None:
    async def script(peer: Peer) -> None:
        slow, quick = await peer.accept(), await peer.accept()
        assert slow.credit == 4
        await peer.send(*(tokens(slow, index, "s") for index in range(4)))  # all that its credit allows
        await peer.send(*(tokens(quick, index, "q") for index in range(50)), finished(quick, 50))
        credit = await peer.expect(Credit)  # only now has the slow reader taken half of its window
        assert (credit.id, credit.tokens) == (slow.id, 2)
        await peer.send(tokens(slow, 4, "s", "s"), finished(slow, 6))
        await peer.until_closed()

    async with (
        FakeServer(script) as server,
        Client(server.url) as client,
        client.stream(prompt="slow", credit=4) as slow,
    ):
        assert (await client.generate(prompt="quick")).num_tokens == 50
        assert "".join([text async for text in slow]) == "ssssss"


async def test_a_server_that_overruns_its_credit_fails_that_stream() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, *["a"] * (2 + MAX_STOP_LENGTH)), tokens(generate, 2 + MAX_STOP_LENGTH, "b"))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        with pytest.raises(APIConnectionError, match="credit of 2"):
            await client.generate(prompt="Hi", credit=2)


async def test_a_gap_in_the_tokens_fails_the_stream_instead_of_hiding_it() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "a"), tokens(generate, 2, "c"))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        with pytest.raises(APIConnectionError, match="token 2 where 1 was due"):
            await client.generate(prompt="Hi")


@pytest.mark.parametrize(
    ("timeouts", "words"),
    [
        (Timeouts(first_token_s=0.02), "first-token timeout of 0.02 s"),
        (Timeouts(total_s=0.02), "total timeout of 0.02 s"),
    ],
)
async def test_a_silent_server_runs_into_the_timeout_that_was_set(timeouts: Timeouts, words: str) -> None:
    async with FakeServer(stay) as server, Client(server.url) as client:
        with pytest.raises(APITimeoutError, match=words):
            await client.generate(prompt="Hi", timeouts=timeouts)


async def test_a_stream_that_stalls_runs_into_the_idle_timeout() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "a"))
        await peer.expect(Cancel)
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url, timeouts=Timeouts(idle_s=0.02)) as client:
        with pytest.raises(APITimeoutError, match="idle timeout"):
            await client.generate(prompt="Hi")


async def test_a_server_that_never_greets_runs_into_the_connect_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"ws://127.0.0.1:{port}", timeouts=Timeouts(connect_s=0.02)) as client:
        with pytest.raises(APITimeoutError, match=r"within 0\.02 s"):
            await client.generate(prompt="Hi")


async def test_nobody_listening_is_a_connection_error_at_once() -> None:
    async with Client("ws://127.0.0.1:1") as client:
        with pytest.raises(APIConnectionError, match="cannot connect"):
            await client.generate(prompt="Hi")


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with FakeServer(answer_hello, api_key="right") as server:
        async with Client(server.url, "wrong") as client:
            with pytest.raises(AuthenticationError):
                await client.generate(prompt="Hi")
            with pytest.raises(AuthenticationError):
                await client.models()
        async with Client(server.url, "right") as client:
            assert (await client.generate(prompt="Hi")).text == "Hello"


async def test_a_server_that_wants_a_key_says_so() -> None:
    async with FakeServer(stay, greeting=hello(authenticated=False)) as server, Client(server.url) as client:
        with pytest.raises(AuthenticationError, match="wants an API key"):
            await client.connect()


async def test_models_are_read_over_http_on_the_same_port() -> None:
    page = b'{"object": "list", "data": [{"id": "demo", "object": "model", "created": 1, "max_model_len": 2048}]}'
    async with FakeServer(stay, pages={"/v1/models": page}) as server, Client(server.url) as client:
        (model,) = await client.models()
    assert (model.id, model.max_model_len) == ("demo", 2048)


async def test_a_proxy_in_the_environment_is_not_used_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with FakeServer(answer_hello) as server, Client(server.url) as client:
        assert (await client.generate(prompt="Hi")).text == "Hello"


async def test_events_of_a_newer_server_are_ignored() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.send('{"type":"weather","of":"tomorrow"}')
        await peer.send(Draining(deadline_ms=5))
        await answer_hello(peer)

    async with FakeServer(script) as server, Client(server.url) as client:
        assert (await client.generate(prompt="Hi")).text == "Hello"


async def test_the_error_of_a_block_leaves_it_unwrapped() -> None:
    async with FakeServer(stay) as server:
        with pytest.raises(KeyError):
            async with Client(server.url) as client, client.stream(prompt="Hi"):
                raise KeyError("mine")


async def test_closing_the_client_ends_streams_that_are_still_read() -> None:
    accepted = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        accepted.set()
        await peer.until_closed()

    async with FakeServer(script) as server:
        async with Client(server.url) as client:
            reader = asyncio.create_task(client.generate(prompt="Hi"))
            await accepted.wait()
        with pytest.raises(APIConnectionError, match="closed"):
            await reader
        with pytest.raises(APIConnectionError, match="not open"):
            await client.generate(prompt="Hi")


async def test_no_task_and_no_future_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with FakeServer(answer_hello) as server, Client(server.url) as client:
        await asyncio.gather(*(client.generate(prompt="Hi") for _ in range(50)))
        assert client._live._streams == {}
    gc.collect()
    assert asyncio.all_tasks() == before


def test_the_client_runs_on_uvloop() -> None:
    async def main() -> str:
        async with FakeServer(answer_hello) as server, Client(server.url) as client:
            return (await client.generate(prompt="Hi")).text

    work: Coroutine[Any, Any, str] = main()
    assert uvloop.run(work) == "Hello"


async def test_a_server_that_hangs_up_after_its_greeting_is_a_connection_error() -> None:
    async def hang_up(peer: Peer) -> None:
        await peer.socket.close(1013, "full")

    async with FakeServer(hang_up) as server, Client(server.url, reconnect=QUICK) as client:
        for _ in range(20):
            with pytest.raises(APIConnectionError):
                await client.generate(prompt="Hi", timeouts=Timeouts(first_token_s=2))


async def test_a_server_that_counts_tokens_without_their_ids_fails_the_stream() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(Tokens(id=generate.id, index=0, count=2, text="ab", tokens=[1]))
        await peer.expect(Cancel)
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client:
        with pytest.raises(APIConnectionError, match="counted 2 tokens and sent the ids of 1"):
            await client.generate(prompt="Hi")


async def test_a_cancelled_read_loses_no_event() -> None:
    async def script(peer: Peer) -> None:
        generate = await peer.accept()
        for index in range(30):
            await peer.send(tokens(generate, index, str(index % 10)))
        await peer.send(finished(generate, 30))
        await peer.until_closed()

    async with FakeServer(script) as server, Client(server.url) as client, client.stream(prompt="Hi") as stream:
        event = None
        while not isinstance(event, Finished):
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    event = await stream.next_event()
            await asyncio.sleep(0)
    assert stream.result.text == "0123456789" * 3


async def test_tls_is_spoken_with_the_given_trust_and_refused_without_it(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    flags = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    make = ("openssl", *flags.split(), "-keyout", str(key), "-out", str(certificate))
    await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    page = {"/v1/models": b'{"data": [{"id": "demo"}]}'}
    async with FakeServer(answer_hello, tls=tls, pages=page) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with Client(server.url, tls=trusting) as client:
            assert (await client.generate(prompt="Hi")).text == "Hello"
            assert [model.id for model in await client.models()] == ["demo"]
        async with Client(server.url) as client:
            with pytest.raises(APIConnectionError, match="certificate verify failed"):
                await client.generate(prompt="Hi")
            with pytest.raises(APIConnectionError, match="certificate verify failed"):
                await client.models()


async def test_a_character_of_more_tokens_than_the_credit_is_taken_whole() -> None:
    async def answer(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(Tokens(id=generate.id, index=0, count=3, text="😀", tokens=[1, 2, 3]))
        assert await peer.expect(Credit) == Credit(id=generate.id, tokens=3)
        await peer.send(tokens(generate, 3, "!"), finished(generate, 4))
        await peer.until_closed()

    async with FakeServer(answer) as server, Client(server.url) as client:
        assert (await client.generate(prompt="x", credit=1)).text == "😀!"
