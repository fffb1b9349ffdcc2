"""API keys. Owns their digests only; compares in constant time; never logs or echoes a key.

A tenant is the name of a key in the rest of the engine: a digest of it, "" when no keys are configured.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

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
    for name in offered:
        if name.startswith(BEARER_SUBPROTOCOL):
            return name[len(BEARER_SUBPROTOCOL) :]
    return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
