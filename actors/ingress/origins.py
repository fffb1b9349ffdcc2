"""Which web pages may talk to this server: the Origin check (foreign pages), the Host check (DNS rebinding). Pure."""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit


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
