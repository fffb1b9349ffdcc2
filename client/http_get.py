"""One GET of one of the server's pages. HTTP/1.1 over asyncio streams, parsed by the standard library, no proxy."""

import asyncio
import io
import socket
from http.client import HTTPException, HTTPResponse
from typing import cast
from urllib.parse import urlsplit

from client.connection import Endpoint
from client.errors import APIConnectionError, APITimeoutError

MAX_PAGE_BYTES = 16 * 2**20


async def http_get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    """Status and body of `path`. Raises APIConnectionError, APITimeoutError."""
    url = urlsplit(endpoint.address.http + path)
    headers = {"Host": url.netloc, "Connection": "close", **endpoint.headers()}
    lines = [f"GET {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    try:
        async with asyncio.timeout(endpoint.connect_s):
            answer = await _exchange(endpoint, "\r\n".join([*lines, "", ""]).encode("latin-1"))
        return _parse(answer)
    except TimeoutError as error:
        raise APITimeoutError(f"{url.geturl()}: no answer within {endpoint.connect_s:g} s") from error
    except (OSError, HTTPException) as error:
        raise APIConnectionError(f"{url.geturl()}: cannot read: {error}") from error


async def _exchange(endpoint: Endpoint, request: bytes) -> bytes:
    host, port = endpoint.address.host, endpoint.address.port
    reader, writer = await asyncio.open_connection(host, port, ssl=endpoint.trust())
    try:
        writer.write(request)
        answer = bytearray()
        while chunk := await reader.read(2**16):
            answer += chunk
            if len(answer) > MAX_PAGE_BYTES:
                raise HTTPException(f"page has more than {MAX_PAGE_BYTES:,} bytes")
        return bytes(answer)
    finally:
        writer.transport.abort()


def _parse(answer: bytes) -> tuple[int, bytes]:
    response = HTTPResponse(cast("socket.socket", _Received(answer)))
    response.begin()
    return response.status, response.read()


class _Received:
    """As much of a socket as HTTPResponse uses."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _mode: str) -> io.BytesIO:
        """All that came, to read."""
        return io.BytesIO(self._answer)
