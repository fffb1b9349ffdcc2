"""Waiting for a server that is still starting or loading its model."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from client.client import Client
from client.errors import APIConnectionError

POLL_S = 0.25


async def wait_until_ready(client: Client, *, limit_s: float, say: Callable[[str], None]) -> None:
    """Return once `/readyz` is not 503. Says each new reason for waiting once.

    Raises APIConnectionError when `limit_s` seconds are over.
    """
    deadline = asyncio.get_running_loop().time() + limit_s
    said = ""
    while (reason := await _obstacle(client)) is not None:
        if asyncio.get_running_loop().time() >= deadline:
            raise APIConnectionError(f"{reason}; gave up after {limit_s:g} s" if limit_s else reason)
        if reason != said:
            say(f"{reason}; waiting up to {limit_s:g} s (Ctrl-C to stop)")
            said = reason
        await asyncio.sleep(POLL_S)


async def _obstacle(client: Client) -> str | None:
    try:
        status, body = await client.get("/readyz")
    except APIConnectionError:
        return f"no server answers at {client.endpoint.address.http}; start one (`make serve`) or give its --url"
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
        return None
    return "the server is draining" if b"draining" in body else "the server is loading its model"
