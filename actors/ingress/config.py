"""Settings of the ingress, resolved once by `actors.node.config`. Defaults are those of the public interface."""

from msgspec import Struct

from protocol.bounds import PositiveCount
from protocol.messages import Slo


class IngressConfig(Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes."""

    api_keys: tuple[str, ...] = ()
    """None: everybody may ask; all requests then are one tenant's."""
    allowed_origins: tuple[str, ...] = ()
    """Beside the server's own; `*` allows all."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    max_message_bytes: PositiveCount = 8 * 1024 * 1024
    max_connections: PositiveCount = 4096
    """Past it a connection is closed with 1013."""
    authenticate_timeout_s: float = 10.0
    """From connecting to a valid key; past it the connection is closed with 1008."""
    send_timeout_s: float = 10.0
    """How long a client may leave a full socket unread; past it the connection is dropped (1008)."""
    write_buffer_bytes: PositiveCount = 64 * 1024
    """Unsent bytes of one connection; above it its tokens wait in their streams and nothing more is read from it."""
    max_backlog_bytes: PositiveCount = 16 * 1024 * 1024
    """About what may wait in the streams of a client that does not read; past it the connection is dropped (1008)."""
    close_timeout_s: float = 3.0
    ping_interval_s: float = 20.0
    """Between WebSocket pings, and how long their pong may take."""
    sweep_interval_s: float = 0.25
    """How often the deadlines above are looked at."""
    default_slo_ttft_ms: PositiveCount | None = None
    default_slo_tpot_ms: PositiveCount | None = None
    inline_chars: PositiveCount = 4096
    """A longer prompt is tokenized on a thread."""
    tokenizer_threads: PositiveCount = 2

    @property
    def default_slo(self) -> Slo | None:
        """For requests that bring none."""
        if self.default_slo_ttft_ms is None and self.default_slo_tpot_ms is None:
            return None
        return Slo(self.default_slo_ttft_ms, self.default_slo_tpot_ms)
