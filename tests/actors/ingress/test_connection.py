"""Sockets that misbehave, sockets that leave, and the end of all of them."""

import asyncio
import json
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from actors.ingress.config import IngressConfig
from actors.runtime.clock import RealClock
from protocol.messages import CancelRequest, Drain, Drained, GetHealth, Health, SchedulerFailed, Submit, TokensGenerated
from protocol.model_info import ModelInfo
from tests.actors.ingress.scripted import ScriptedScheduler, Served, hear, hear_end, say, served
from tests.actors.runtime.clock import VirtualClock, settle


async def test_hello_tells_the_limits(server: Served) -> None:
    async with server.connect() as client:
        hello = await hear(client)
    assert hello["server"].startswith("tokenstage/")
    del hello["server"]
    assert hello == {
        "type": "hello",
        "protocol": 1,
        "models": ["bytes"],
        "max_model_len": 200,
        "max_message_bytes": 8 * 1024 * 1024,
        "authenticated": True,
    }


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (None, None),
        (["tokenstage.v1.json"], "tokenstage.v1.json"),
        (["other", "tokenstage.v1.msgpack", "tokenstage.v1.json"], "tokenstage.v1.msgpack"),
        (["other"], None),
    ],
)
async def test_subprotocols(server: Served, offered: Any, agreed: str | None) -> None:
    async with server.connect(subprotocols=offered) as client:
        assert client.subprotocol == agreed


@pytest.mark.parametrize("frame", [b"{}", "[]", "{", "nonsense", '{"type":"fly"}', "[" * 100_000, '{"type":"cancel"}'])
async def test_a_bad_frame_gets_failed_and_the_socket_stays_open(client: ClientConnection, frame: str | bytes) -> None:
    await client.send(frame)
    assert (await hear(client))["code"] == "invalid_request"
    await say(client, "ping", nonce=5)
    assert await hear(client) == {"type": "pong", "nonce": 5}


async def test_what_a_session_refuses_is_counted_too(server: Served, client: ClientConnection) -> None:
    for fields in ({"temperature": 9}, {"model": "other"}, {"temperature": 9}):
        await say(client, "generate", id="a", prompt="p", **fields)
        await hear(client)
    page = (await server.get("/metrics"))[2].decode()
    assert 'tokenstage_request_failure_total{model_name="bytes",code="invalid_request"} 2\n' in page
    assert 'tokenstage_request_failure_total{model_name="bytes",code="model_not_found"} 1\n' in page


async def test_an_oversize_message_closes_with_1009(model: ModelInfo) -> None:
    async with served(model, IngressConfig(max_message_bytes=1000), RealClock()) as server, server.connect() as client:
        await hear(client)
        await client.send("x" * 1001)
        assert await _close_code(client) == 1009


async def test_bad_utf8_closes_with_1007(server: Served) -> None:
    async with server.connect() as client:
        await hear(client)
        client.transport.write(Frame(Opcode.TEXT, b"\xff\xfe").serialize(mask=True))
        assert await _close_code(client) == 1007


async def test_past_the_limit_a_connection_is_closed_with_1013(model: ModelInfo) -> None:
    config = IngressConfig(max_connections=1, close_timeout_s=0.5)
    async with served(model, config, RealClock()) as server, server.connect() as first:
        await hear(first)
        async with server.connect() as second:
            assert await _close_code(second) == 1013


async def test_500_sockets_closed_in_one_tick_cancel_500_requests(server: Served, scheduler: ScriptedScheduler) -> None:
    hello_and_request = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    hello_and_request += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    frame = Frame(Opcode.TEXT, b'{"type":"generate","id":"a","prompt":"p"}').serialize(mask=True)
    writers = []
    for _ in range(500):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(hello_and_request)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame)
        writers.append(writer)
    submits = [await scheduler.accept() for _ in writers]
    await scheduler.ingress.ask(GetHealth(), timeout_s=5)
    for writer in writers:
        writer.transport.abort()
    cancelled = {(await scheduler.next(CancelRequest)).request for _ in writers}
    assert cancelled == {submit.request for submit in submits}
    for submit in submits:
        await scheduler.finish(submit, "cancelled")
    await _until_idle(server)
    async with server.connect() as client:
        assert (await hear(client))["type"] == "hello"


async def test_a_client_that_never_reads_is_dropped_at_its_deadline_and_others_go_on(model: ModelInfo) -> None:
    clock = VirtualClock()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = IngressConfig(write_buffer_bytes=4096, send_timeout_s=10, max_backlog_bytes=1 << 30, close_timeout_s=0.5)
    async with served(model, config, clock, listener) as server, server.connect() as reader:
        scheduler = server.scheduler
        await say(reader, "generate", id="good", prompt="p")
        good = await scheduler.accept()
        deaf = await _deaf_client(server.port)
        bad = await scheduler.accept()
        frames_before = 0
        for _ in range(400):
            message = TokensGenerated([scheduler.delta(bad, "y" * 500), scheduler.delta(good, "x")])
            await scheduler.ingress.tell(message)
            await scheduler.ingress.ask(GetHealth(), timeout_s=5)
            while (await hear(reader))["type"] != "tokens":
                pass
            frames_before += 1
        (connection,) = (one for one in server.actor._connections._open if one._stalled_at is not None)
        unsent = connection._socket.transport.get_write_buffer_size()
        assert unsent < 4096 + 600  # one frame over the mark at most: the rest waits as text
        assert scheduler.told.empty()
        await clock.advance(9)
        assert len(server.actor._connections) == 2
        await clock.advance(2)
        assert await scheduler.next(CancelRequest) == CancelRequest(bad.request)
        deaf.close()
        await scheduler.emit(good, "z")
        assert (await hear(reader))["text"] == "z"
        assert frames_before == 400
        assert (
            'tokenstage_ws_close_total{model_name="bytes",code="1008"} 1' in (await server.get("/metrics"))[2].decode()
        )


async def test_a_client_that_reads_again_gets_all_that_waited_in_order(model: ModelInfo) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = IngressConfig(write_buffer_bytes=2048, close_timeout_s=0.5)
    async with served(model, config, RealClock(), listener) as server:
        deaf = await _deaf_client(server.port)
        submit = await server.scheduler.accept()
        text = "".join(f"{number:05}" for number in range(10_000))
        for start in range(0, len(text), 500):
            await server.scheduler.emit(submit, text[start : start + 500])
            await server.ingress.ask(GetHealth(), timeout_s=5)
        await server.scheduler.finish(submit)
        await server.ingress.ask(GetHealth(), timeout_s=5)
        events = await asyncio.to_thread(_read_all, deaf)
        assert "".join(event["text"] for event in events if event["type"] == "tokens") == text
        assert [event["type"] for event in events if event["type"] != "tokens"] == ["hello", "accepted", "finished"]
        counts = [(event["index"], event["count"]) for event in events if event["type"] == "tokens"]
        assert [index for index, _ in counts] == [sum(count for _, count in counts[:at]) for at in range(len(counts))]


async def test_a_client_whose_backlog_is_too_big_is_dropped_before_its_deadline(model: ModelInfo) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = IngressConfig(write_buffer_bytes=2048, max_backlog_bytes=1_000_000, close_timeout_s=0.5)
    async with served(model, config, VirtualClock(), listener) as server:
        deaf = await _deaf_client(server.port)
        submit = await server.scheduler.accept()
        (connection,) = server.actor._connections._open
        while connection._socket.is_writable:
            await server.scheduler.emit(submit, "y" * 1000)
            await server.ingress.ask(GetHealth(), timeout_s=5)
        for _ in range(20):  # 4 MB of backlog, if nobody minds
            await server.scheduler.emit(submit, "y" * 1000)
            await server.ingress.ask(GetHealth(), timeout_s=5)
        assert await server.scheduler.next(CancelRequest) == CancelRequest(submit.request)
        assert len(server.actor._connections) == 0
        deaf.close()


async def test_a_flood_of_pings_without_reading_does_not_grow_the_buffer(model: ModelInfo) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = IngressConfig(write_buffer_bytes=4096, close_timeout_s=0.5)
    async with served(model, config, VirtualClock(), listener) as server:
        deaf = await _deaf_client(server.port)
        await server.scheduler.accept()
        deaf.setblocking(False)
        ping = Frame(Opcode.PING, b"x" * 100).serialize(mask=True) * 500
        sent = 0
        for _ in range(300):
            try:
                sent += deaf.send(ping)
            except BlockingIOError:
                await settle()
        (connection,) = server.actor._connections._open
        assert connection._socket.transport.get_write_buffer_size() < 600_000  # one read of the loop is 256 KiB
        deaf.close()


async def test_a_failing_connection_is_closed_with_1011_and_others_go_on(
    server: Served,
    client: ClientConnection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with server.connect() as broken:
        await hear(broken)
        (victim,) = (
            one for one in server.actor._connections._open if one._socket.remote_address == broken.local_address
        )

        def explode(frame: object) -> None:
            raise ZeroDivisionError(frame)

        monkeypatch.setattr(victim._session, "receive_frame", explode)
        await say(broken, "ping", nonce="private")
        assert await _close_code(broken) == 1011
    logged = "".join(capsys.readouterr())
    assert "ZeroDivisionError in explode" in logged
    assert "private" not in logged
    await say(client, "ping", nonce=1)
    assert (await hear(client))["type"] == "pong"


async def test_a_connection_that_cannot_begin_is_logged_and_closed(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("private")

    monkeypatch.setattr("actors.ingress.server.new_session", explode)
    async with server.connect() as broken:
        assert await _close_code(broken) == 1011
    await _until_idle(server)
    logged = "".join(capsys.readouterr())
    assert "ZeroDivisionError" in logged
    assert "private" not in logged
    assert 'tokenstage_ws_connections{model_name="bytes"} 0' in (await server.get("/metrics"))[2].decode()


async def test_a_connection_that_fails_while_tokens_are_sent_takes_no_other_with_it(
    server: Served, client: ClientConnection, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(client, "generate", id="good", prompt="p")
    good = await scheduler.accept()
    async with server.connect() as broken:
        await say(broken, "generate", id="bad", prompt="p")
        bad = await scheduler.accept()
        (victim,) = (one for one in server.actor._connections._open if "bad" in one._listener.streams)

        def explode(event: object) -> None:
            raise ZeroDivisionError(event)

        monkeypatch.setattr(victim._session, "send_event", explode)
        await scheduler.ingress.tell(TokensGenerated([scheduler.delta(bad, "x"), scheduler.delta(good, "x")]))
        assert await _close_code(broken) == 1011
    assert await scheduler.next(CancelRequest) == CancelRequest(bad.request)
    await scheduler.finish(good)
    assert (await hear_end(client, "good"))[1]["type"] == "finished"


async def test_a_scheduler_that_is_gone_fails_every_live_request(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    await scheduler.emit(submit, "x")
    await scheduler.ingress.tell(SchedulerFailed("the scheduler has stopped"))
    frames, failed = await hear_end(client, "a")
    assert [frame["text"] for frame in frames] == ["x"]
    assert failed["code"] == "internal"


async def test_a_scheduler_that_goes_while_a_request_waits_for_room_fails_that_request_once_and_nothing_else(
    client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    scheduler.waits_until = asyncio.Event()
    await say(client, "generate", id="a", prompt="p")
    await scheduler.is_waited_for.wait()
    await scheduler.ingress.tell(SchedulerFailed("the scheduler has stopped"))
    assert (await hear_end(client, "a"))[1]["code"] == "internal"
    scheduler.is_gone = True
    scheduler.waits_until.set()
    await say(client, "ping", nonce=1)
    assert (await hear(client))["type"] == "pong"


async def test_a_scheduler_that_does_not_exist_any_more_is_noticed(model: ModelInfo) -> None:
    clock = VirtualClock()
    async with served(model, IngressConfig(), clock) as server, server.connect() as client:
        await say(client, "generate", id="a", prompt="p")
        await server.scheduler.accept()
        server.scheduler.is_gone = True
        await clock.advance(1.5)
        assert (await hear_end(client, "a"))[1]["code"] == "internal"
        await say(client, "generate", id="b", prompt="p")
        assert (await hear_end(client, "b"))[1]["code"] == "internal"


async def test_requests_before_the_model_is_loaded_are_refused_with_a_hint(
    client: ClientConnection, server: Served
) -> None:
    server.actor._status.is_ready = False
    await say(client, "generate", id="a", prompt="p")
    failed = await hear(client)
    assert (failed["code"], failed["retry_after_ms"]) == ("overloaded", 1000)


async def test_draining_lets_running_requests_end_and_refuses_new_ones(
    server: Served, client: ClientConnection, scheduler: ScriptedScheduler
) -> None:
    await say(client, "generate", id="a", prompt="p")
    submit = await scheduler.accept()
    assert (await hear(client))["type"] == "accepted"
    drained = asyncio.ensure_future(server.ingress.ask(Drain(60_000), timeout_s=30))
    assert await hear(client) == {"type": "draining", "deadline_ms": 60_000}
    await say(client, "generate", id="b", prompt="p")
    failed = await hear(client)
    assert (failed["id"], failed["code"]) == ("b", "draining")
    health: Health = await server.ingress.ask(GetHealth(), timeout_s=5)
    assert health.num_running == 1
    assert not drained.done()
    await scheduler.emit(submit, "x")
    await scheduler.finish(submit)
    assert (await hear_end(client, "a"))[1]["type"] == "finished"
    assert await _close_code(client) == 1001
    assert await drained == Drained()


async def test_draining_ends_at_its_deadline(model: ModelInfo) -> None:
    clock = VirtualClock()
    async with served(model, IngressConfig(close_timeout_s=0.5), clock) as server, server.connect() as client:
        await say(client, "generate", id="a", prompt="p")
        await server.scheduler.accept()
        drained = asyncio.ensure_future(server.ingress.ask(Drain(5_000), timeout_s=30))
        while (await hear(client))["type"] != "draining":
            pass
        await clock.advance(4.5)
        assert client.state is State.OPEN
        await clock.advance(1)
        assert (await hear_end(client, "a"))[1]["code"] == "draining"
        assert await _close_code(client) == 1001
        await clock.advance(1)
        assert await drained == Drained()


async def test_an_idle_ingress_drains_at_once(server: Served, client: ClientConnection) -> None:
    drained = asyncio.ensure_future(server.ingress.ask(Drain(60_000), timeout_s=30))
    assert (await hear(client))["type"] == "draining"
    assert await _close_code(client) == 1001
    assert await drained == Drained()


async def test_stopping_the_actor_closes_sockets_with_1001(model: ModelInfo) -> None:
    async with served(model, IngressConfig(close_timeout_s=0.5), RealClock()) as server:
        client = await server.connect()
        await hear(client)
        await server.system.stop("ingress")
        assert await _close_code(client) == 1001


async def test_stopping_the_actor_does_not_wait_for_a_client_that_never_reads(model: ModelInfo) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = IngressConfig(write_buffer_bytes=2048, close_timeout_s=60)
    async with served(model, config, RealClock(), listener) as server:
        deaf = await _deaf_client(server.port)
        submit = await server.scheduler.accept()
        (connection,) = server.actor._connections._open
        while connection._socket.is_writable:
            await server.scheduler.emit(submit, "y" * 1000)
            await server.ingress.ask(GetHealth(), timeout_s=5)
        async with asyncio.timeout(5):
            await server.system.stop("ingress")
        deaf.close()


async def test_nothing_is_left_over_after_many_requests(server: Served, scheduler: ScriptedScheduler) -> None:
    async def round_trip() -> None:
        async with server.connect() as client:
            for number in range(10):
                await say(client, "generate", id=str(number), prompt="p")
                submit = await scheduler.accept()
                await scheduler.emit(submit, "x")
                await scheduler.finish(submit)
                await hear_end(client, str(number))

    await round_trip()
    await _until_idle(server)
    tasks, files = len(asyncio.all_tasks()), _num_files()
    for _ in range(30):
        await round_trip()
    await _until_idle(server)
    assert len(asyncio.all_tasks()) == tasks
    assert _num_files() == files
    assert len(server.actor._live) == 0
    assert server.actor._live.due == {}


async def test_tls_is_spoken_with_a_certificate(model: ModelInfo, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    trust = ssl.create_default_context(cafile=str(certificate))
    config = IngressConfig(ssl_certfile=str(certificate), ssl_keyfile=str(key), close_timeout_s=0.5)
    async with (
        served(model, config, RealClock()) as server,
        connect(f"wss://localhost:{server.port}/v1/stream", ssl=trust, proxy=None) as client,
    ):
        assert (await hear(client))["type"] == "hello"
        await say(client, "generate", id="a", prompt="p")
        submit: Submit = await server.scheduler.accept()
        await server.scheduler.emit(submit, "x")
        await server.scheduler.finish(submit)
        assert (await hear_end(client, "a"))[1]["type"] == "finished"


def _num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def _close_code(client: ClientConnection) -> int:
    """Read on to the end."""
    with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012 - which frame is the last is not known
        while True:
            await asyncio.wait_for(client.recv(), 5)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


async def _until_idle(server: Served) -> None:
    """All connections are gone from the server's side too."""
    async with asyncio.timeout(5):
        assert server.actor._server is not None
        while server.actor._connections or server.actor._server.handler_tasks:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


async def _deaf_client(port: int) -> socket.socket:
    """A client that asks for one stream and reads nothing; its kernel buffer is small."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        + Frame(Opcode.TEXT, b'{"type":"generate","id":"deaf","prompt":"p"}').serialize(mask=True)
    )
    await settle()
    return client


def _read_all(client: socket.socket) -> list[dict[str, Any]]:
    """Every event up to the terminal one, by the frame layout of RFC 6455 section 5.2."""
    stream = client.makefile("rb")
    while stream.readline() != b"\r\n":
        pass
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "finished":
        first, length = stream.read(2)
        assert first == 0x81
        if length == 126:
            (length,) = struct.unpack("!H", stream.read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", stream.read(8))
        events.append(json.loads(stream.read(length)))
    stream.close()
    client.close()
    return events
