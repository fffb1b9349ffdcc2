"""The pages, and what is refused before it becomes a socket."""

import asyncio
import json
import re

import pytest
from websockets.exceptions import InvalidStatus

from actors.ingress.config import IngressConfig
from actors.runtime.clock import RealClock
from protocol.messages import Drain, Health
from protocol.model_info import ModelInfo
from tests.actors.ingress.byte_model import MAX_MODEL_LEN
from tests.actors.ingress.scripted import Served, served


async def test_the_chat_page_runs_its_own_scripts_only(server: Served) -> None:
    status, headers, body = await server.get("/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"tokenstage" in body
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert int(headers["content-length"]) == len(body)


async def test_head_is_get_without_a_body(server: Served) -> None:
    _, whole, body = await server.get("/v1/models")
    status, headers, nothing = await server.get("/v1/models", method="HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["content-length"] == whole["content-length"] == str(len(body))


async def test_models_are_listed_in_openais_shape(server: Served) -> None:
    _, _, body = await server.get("/v1/models")
    assert json.loads(body) == {
        "object": "list",
        "data": [
            {
                "id": "bytes",
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "tokenstage",
                "max_model_len": MAX_MODEL_LEN,
                "max_message_bytes": 8 * 1024 * 1024,
            }
        ],
    }


async def test_version_is_served(server: Served) -> None:
    assert json.loads((await server.get("/version?x=1"))[2])["version"]


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/../etc/passwd", "/v1/stream/", "//"])
async def test_other_paths_are_404_with_json(server: Served, path: str) -> None:
    status, headers, body = await server.get(path)
    assert (status, headers["content-type"]) == (404, "application/json")
    assert json.loads(body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/responses"])
async def test_a_plain_get_of_a_socket_path_is_426(server: Served, path: str) -> None:
    status, headers, _ = await server.get(path)
    assert (status, headers["upgrade"]) == (426, "websocket")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/chat/completions", 404), ("POST", "/v1/models?x=1", 405), ("GET", "/health", 400)],
)
@pytest.mark.parametrize("framing", [{"Content_Length": "2"}, {"Transfer_Encoding": "chunked"}])
async def test_a_request_with_a_body_is_answered(
    server: Served, method: str, path: str, status: int, framing: dict[str, str]
) -> None:
    answered, headers, body = await server.get(path, method=method, **framing)
    assert (answered, headers["content-type"], headers["connection"]) == (status, "application/json", "close")
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("noise", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x00\r\n", b"\r\n"])
async def test_what_is_no_request_is_answered_once_with_400(server: Served, noise: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(noise)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.write(noise)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 400") == 1


async def test_a_port_that_is_only_opened_and_closed_gets_nothing(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_other_methods_are_405(server: Served) -> None:
    status, headers, _ = await server.get("/", method="DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_a_websocket_of_another_path_is_404(server: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with server.connect("/v1/other"):
            pass
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_health_is_the_schedulers_word(server: Served, path: str) -> None:
    assert (await server.get(path))[0] == 200
    server.scheduler.answers_health = Health(ok=False, detail="no step for 5 s")
    status, _, body = await server.get(path)
    assert status == 503
    assert json.loads(body)["detail"] == "no step for 5 s"


async def test_health_fails_when_the_scheduler_does_not_answer(server: Served) -> None:
    server.scheduler.answers_health = None
    assert (await server.get("/health"))[0] == 503


async def test_health_fails_when_the_scheduler_is_gone(server: Served) -> None:
    server.scheduler.is_gone = True
    assert (await server.get("/health"))[0] == 503


async def test_ready_ends_with_draining(server: Served) -> None:
    assert (await server.get("/readyz"))[0] == 200
    await server.ingress.tell(Drain(60_000))
    status, _, body = await server.get("/readyz")
    assert (status, json.loads(body)["status"]) == (503, "draining")


async def test_not_ready_while_the_model_loads(server: Served) -> None:
    server.actor._status.is_ready = False
    status, _, body = await server.get("/readyz")
    assert (status, json.loads(body)["status"]) == (503, "loading")


async def test_metrics_of_all_actors_are_on_one_page(server: Served) -> None:
    async with server.connect() as client:
        await client.recv()
        status, headers, body = await server.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    text = body.decode()
    assert 'tokenstage_ws_connections{model_name="bytes"} 1\n' in text
    assert 'tokenstage_num_requests_running{model_name="bytes",group="0"} 3\n' in text
    assert "# TYPE tokenstage_ws_close_total counter" in text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .*|\w+(\{(\w+="[^"]*",?)+\})? \S+', line), line


async def test_metrics_go_on_without_the_scheduler(server: Served) -> None:
    server.scheduler.is_gone = True
    assert "tokenstage_ws_connections" in (await server.get("/metrics"))[2].decode()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "10.0.0.1", "a@b@c["])
async def test_a_foreign_host_header_is_refused_on_loopback(server: Served, host: str) -> None:
    assert (await server.get("/", Host=host))[0] == 403
    assert (await server.get("/health", Host=host))[0] == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8765", "127.9.9.9", "app.localhost"]
)
async def test_names_of_the_loopback_are_served(server: Served, host: str) -> None:
    assert (await server.get("/", Host=host))[0] == 200


async def test_no_host_header_is_refused_on_loopback(server: Served) -> None:
    assert (await server.get("/", Host=""))[0] == 403


async def test_a_page_of_another_origin_may_not_connect(server: Served) -> None:
    for origin in ("https://evil.example", "null", f"http://localhost:{server.port + 1}"):
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect(origin=origin):
                pass
        assert refused.value.response.status_code == 403


async def test_the_servers_own_page_may_connect(server: Served) -> None:
    async with server.connect(origin=f"http://127.0.0.1:{server.port}") as client:
        await client.recv()


async def test_a_configured_origin_may_connect(model: ModelInfo) -> None:
    config = IngressConfig(allowed_origins=("https://app.example",))
    async with served(model, config, RealClock()) as server:
        async with server.connect(origin="https://APP.example") as client:
            await client.recv()
        with pytest.raises(InvalidStatus):
            async with server.connect(origin="https://other.example"):
                pass
