"""What all connections of one ingress share. A plain record: the actor makes it, connections use it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from actors.ingress.access import Keys
from actors.ingress.engine import EngineStatus
from actors.ingress.live_requests import LiveRequests
from actors.ingress.metrics import IngressMetrics
from actors.ingress.requests import RequestReader
from actors.runtime.clock import Clock


@dataclass(slots=True, kw_only=True)
class Desk:
    """`due`: flushes to be made at the end of this tick, one for each connection at most."""

    keys: Keys
    status: EngineStatus
    requests: RequestReader
    live: LiveRequests
    metrics: IngressMetrics
    clock: Clock
    due: list[Callable[[], None]] = field(default_factory=list)

    def flush(self) -> None:
        """Send what this tick has brought."""
        due, self.due = self.due, []
        for flush in due:
            flush()
