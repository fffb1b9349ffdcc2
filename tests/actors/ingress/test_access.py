"""Keys: who is let in where, and when a silent connection is closed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from actors.ingress.access import (
    Keys,
    is_address_loopback,
    is_host_loopback,
    is_origin_allowed,
    key_of_header,
    key_of_subprotocols,
)
from actors.ingress.config import IngressConfig
from protocol.model_info import ModelInfo
from tests.actors.ingress.scripted import Served, hear, say, served
from tests.actors.runtime.clock import VirtualClock

GOOD = {"Authorization": "Bearer s3cret"}
CONFIG = IngressConfig(api_keys=("other", "s3cret"), close_timeout_s=0.5)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def locked(model: ModelInfo, clock: VirtualClock) -> AsyncIterator[Served]:
    async with served(model, CONFIG, clock) as running:
        yield running


async def test_a_key_in_the_header_authenticates(locked: Served) -> None:
    async with locked.connect(additional_headers=GOOD) as client:
        assert (await hear(client))["authenticated"] is True
        await say(client, "generate", id="a", prompt="p")
        submit = await locked.scheduler.accept()
    assert submit.tenant
    assert "s3cret" not in submit.tenant


async def test_different_keys_are_different_tenants(locked: Served) -> None:
    tenants = set()
    for key in ("other", "s3cret", "s3cret"):
        async with locked.connect(additional_headers={"Authorization": f"bearer {key}"}) as client:
            await say(client, "generate", id="a", prompt="p")
            tenants.add((await locked.scheduler.accept()).tenant)
            while not locked.scheduler.told.empty():
                locked.scheduler.told.get_nowait()
            await say(client, "ping")
            await _hear_kind(client, "pong")
        await locked.scheduler.told.get()  # the cancel of the one that left
    assert len(tenants) == 2


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/responses"])
@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer", "Bearer s3cret2", "Basic s3cret"])
async def test_a_wrong_key_in_the_header_is_401(locked: Served, path: str, value: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with locked.connect(path, additional_headers={"Authorization": value}):
            pass
    assert refused.value.response.status_code == 401
    assert b"wrong" not in refused.value.response.body


async def test_a_first_message_authenticates(locked: Served) -> None:
    async with locked.connect() as client:
        assert (await hear(client))["authenticated"] is False
        await say(client, "generate", id="a", prompt="p")
        failed = await hear(client)
        assert (failed["id"], failed["code"]) == ("a", "unauthenticated")
        await say(client, "authenticate", key="s3cret")
        await say(client, "generate", id="b", prompt="p")
        await locked.scheduler.accept()


async def test_a_wrong_first_message_ends_the_connection(locked: Served) -> None:
    async with locked.connect() as client:
        await hear(client)
        await say(client, "authenticate", key="wrong")
        failed = await hear(client)
        assert failed["code"] == "unauthenticated"
        assert "wrong" not in failed["message"]
        await _expect_close(client, 1008)


async def test_a_connection_without_a_key_is_closed_after_ten_seconds(locked: Served, clock: VirtualClock) -> None:
    async with locked.connect() as client:
        await hear(client)
        await clock.advance(9.9)
        await say(client, "ping", nonce=1)
        assert (await hear(client))["type"] == "pong"
        await clock.advance(0.5)
        await _expect_close(client, 1008)


async def test_an_authenticated_connection_may_be_silent(locked: Served, clock: VirtualClock) -> None:
    async with locked.connect(additional_headers=GOOD) as client:
        await hear(client)
        await clock.advance(60)
        await say(client, "ping", nonce=1)
        assert (await hear(client))["type"] == "pong"


async def test_a_browser_gives_its_key_as_a_subprotocol_that_is_not_echoed(locked: Served) -> None:
    async with locked.connect("/v1/responses", subprotocols=["bearer.s3cret"]) as client:
        assert client.subprotocol is None
        await say(client, "response.create", model="bytes", input="hi")
        await locked.scheduler.accept()


async def test_a_browsers_other_subprotocol_is_agreed_on(locked: Served) -> None:
    async with locked.connect("/v1/responses", subprotocols=["bearer.s3cret", "responses"]) as client:
        assert client.subprotocol == "responses"


async def test_a_wrong_subprotocol_key_is_401(locked: Served) -> None:
    with pytest.raises(InvalidStatus):
        async with locked.connect("/v1/responses", subprotocols=["bearer.wrong"]):
            pass


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/readyz"])
async def test_open_pages_need_no_key(locked: Served, path: str) -> None:
    assert (await locked.get(path))[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version", "/nowhere"])
async def test_other_pages_need_one(locked: Served, path: str) -> None:
    status, headers, _ = await locked.get(path)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert (await locked.get(path, **GOOD))[0] in (200, 404)


def test_without_keys_everybody_is_one_tenant() -> None:
    assert Keys([]).tenant_of(None) == ""
    assert Keys([]).tenant_of("any") == ""


def test_keys_of_any_text_are_compared() -> None:
    assert Keys(["kéy"]).tenant_of("kéy")
    assert Keys(["key"]).tenant_of("\ud800") is None


@pytest.mark.parametrize(
    ("header", "key"),
    [(None, None), ("Basic abc", ""), ("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Bearer", "")],
)
def test_the_key_of_a_header(header: str | None, key: str | None) -> None:
    assert key_of_header(header) == key


def test_the_key_of_subprotocols() -> None:
    assert key_of_subprotocols(["responses", "bearer.abc"]) == "abc"
    assert key_of_subprotocols(["responses"]) is None


async def _expect_close(client: ClientConnection, code: int) -> None:
    with pytest.raises(ConnectionClosed) as closed:
        await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


async def _hear_kind(client: ClientConnection, kind: str) -> dict[str, Any]:
    while (event := await hear(client))["type"] != kind:
        pass
    return event


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "answer"),
    [
        (None, None, (), True),
        ("http://a.example", "a.example", (), True),
        ("http://a.example:80", "a.example", (), True),
        ("https://a.example", "a.example:443", (), True),
        ("http://A.Example:8765", "a.example:8765", (), True),
        ("http://a.example:8766", "a.example:8765", (), False),
        ("http://a.example.evil", "a.example", (), False),
        ("http://evil", "a.example", (), False),
        ("http://evil", None, (), False),
        ("null", "a.example", (), False),
        ("null", "a.example", ("null",), True),
        ("file://", "a.example", (), False),
        ("http://[", "[", (), False),
        ("", "a.example", (), False),
        ("https://b.example/", "a.example", ("https://b.example",), True),
        ("https://b.example", "a.example", ("http://b.example",), False),
        ("https://b.example", "a.example", ("*",), True),
    ],
)
def test_which_origins_may_connect(
    origin: str | None,
    host: str | None,
    allowed: tuple[str, ...],
    answer: bool,  # noqa: FBT001 - a table
) -> None:
    assert is_origin_allowed(origin, host, allowed) is answer


@pytest.mark.parametrize("host", ["localhost", "localhost.", "127.0.0.1:80", "[::1]", "[::1]:80", "LocalHost:1"])
def test_loopback_hosts(host: str) -> None:
    assert is_host_loopback(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil", "localhost.evil", "1.2.3.4", "[::2]", "[", "::1:80", "127.0.0.1@evil"]
)
def test_foreign_hosts(host: str | None) -> None:
    assert not is_host_loopback(host)


def test_loopback_addresses() -> None:
    assert is_address_loopback("127.0.0.2")
    assert is_address_loopback("::1")
    assert not is_address_loopback("0.0.0.0")  # noqa: S104 - the address that means all
    assert not is_address_loopback("name")
