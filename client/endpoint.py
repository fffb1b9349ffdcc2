"""Where a server is: one address given by the caller, the WebSocket and HTTP addresses made of it."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from client.errors import BadRequestError

_SCHEMES = {"ws": ("ws", "http"), "wss": ("wss", "https"), "http": ("ws", "http"), "https": ("wss", "https")}
_PATHS = ("/v1/stream", "/v1/responses", "/v1")


class Address(Struct, frozen=True, kw_only=True):
    """`stream` and `responses` are the WebSocket addresses of the two dialects, `http` the prefix of the pages."""

    host: str
    port: int
    secure: bool
    stream: str
    responses: str
    http: str

    @property
    def is_loopback(self) -> bool:
        """On this machine: a proxy from the environment must not get in between."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(url: str) -> Address:
    """Read `ws://host:port` (or wss, http, https; a path of ours at the end is taken off). Raises BadRequestError."""
    parts = _split(url)
    ws, http = _SCHEMES[parts.scheme]
    path = parts.path.rstrip("/")
    for known in _PATHS:
        path = path.removesuffix(known)
    return Address(
        host=parts.hostname or "",
        port=parts.port or (443 if ws == "wss" else 80),
        secure=ws == "wss",
        stream=f"{ws}://{parts.netloc}{path}/v1/stream",
        responses=f"{ws}://{parts.netloc}{path}/v1/responses",
        http=f"{http}://{parts.netloc}{path}",
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or 0 < parts.port < 2**16
    except ValueError:
        port_is_valid = False
    if not port_is_valid or parts.scheme not in _SCHEMES or not parts.hostname:
        raise BadRequestError(f"url {url!r} is not of the form ws://host:port", code="invalid_request", param="url")
    return parts
