"""Who may talk to this server: API keys, pages by their Origin, names by their Host (against DNS rebinding). Pure.

Owns the keys' digests only; compares in constant time; never logs or echoes a key. A tenant is the name of a key in the
rest of the engine: a digest of it, "" when no keys are configured.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

BEARER_SUBPROTOCOL = "bearer."


class Keys:
    """The configured keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def are_required(self) -> bool:
        """Whether any key is configured."""
        return bool(self._digests)

    def tenant_of(self, key: str | None) -> str | None:
        """The tenant that `key` stands for; None when it is not good enough."""
        if not self._digests:
            return ""
        if key is None:
            return None
        given = _digest(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # all of them: no early way out
        return given.hex()[:16] if any(matches) else None


def key_of_header(authorization: str | None) -> str | None:
    """The key of `Authorization: Bearer <key>`; of any other form "", which is no key; None without the header."""
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def key_of_subprotocols(offered: Sequence[str]) -> str | None:
    """The key of a browser that offers the subprotocol `bearer.<key>`, since it cannot set a header."""
    keys = (name.removeprefix(BEARER_SUBPROTOCOL) for name in offered if name.startswith(BEARER_SUBPROTOCOL))
    return next(keys, None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def is_origin_allowed(origin: str | None, host: str | None, allowed: Sequence[str]) -> bool:
    """No Origin (not a browser), the server's own (the same host and port as in Host), or a configured one."""
    if origin is None or "*" in allowed:
        return True
    origin = origin.lower().rstrip("/")
    if origin in (one.lower().rstrip("/") for one in allowed):
        return True
    parts = _split(origin)
    if parts is None or host is None:
        return False
    scheme, netloc = parts
    port = ":443" if scheme == "https" else ":80"
    return netloc.removesuffix(port) == host.lower().removesuffix(port)


def is_host_loopback(host: str | None) -> bool:
    """Whether a Host header names this machine only: a page of another name that resolves to 127.0.0.1 is an attack."""
    name = _host_name(host or "")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_address_loopback(name)


def is_address_loopback(address: str) -> bool:
    """Whether an address literal is of this machine only."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _split(origin: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return (parts.scheme, parts.netloc) if parts.scheme in ("http", "https") and parts.netloc else None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
