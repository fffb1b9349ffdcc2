"""What a caller may tune: how long to wait, and how to reconnect. Frozen values, resolved once by `Client`."""

import random

from msgspec import Struct


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds; None waits for ever. All but `connect_s` count only while the caller waits for the stream."""

    connect_s: float = 10.0
    """TCP, TLS, WebSocket handshake and the server's `hello`, together; for one attempt."""
    first_token_s: float | None = 600.0
    """From entering the stream to its first token: a full queue is in here."""
    idle_s: float | None = 60.0
    """Between two frames of one stream once it has begun; a reconnection happens in here."""
    total_s: float | None = None
    """From entering the stream to its end."""


class Reconnect(Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter: before attempt n sleep a random part of min(cap_s, base_s * 2**n)."""

    max_attempts: int = 10
    """Attempts in a row without one token received; 0 never reconnects."""
    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, num_failures: int, draw: random.Random) -> float | None:
        """Seconds to wait after `num_failures` (from 1) attempts in a row; None: give up."""
        if num_failures > self.max_attempts:
            return None
        return draw.uniform(0, min(self.cap_s, self.base_s * 2 ** (num_failures - 1)))
