"""What the ingress itself counts: sockets, and refusals made here. The scheduler counts the rest."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from actors.runtime.metrics import snapshot_of
from protocol.messages import MetricsSnapshot


class IngressMetrics:
    """One registry of its own; names as in the public interface."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._model_name = model_name
        self._connections = Gauge(
            "tokenstage_ws_connections", "Open WebSocket connections.", ["model_name"], registry=self._registry
        ).labels(model_name)
        self._closes = Counter(
            "tokenstage_ws_close",
            "WebSocket connections closed, by close code.",
            ["model_name", "code"],
            registry=self._registry,
        )
        self._failures = Counter(
            "tokenstage_request_failure",
            "Requests that ended in `failed`, by code.",
            ["model_name", "code"],
            registry=self._registry,
        )

    def count_open(self) -> None:
        """A connection was opened."""
        self._connections.inc()

    def count_close(self, code: int) -> None:
        """A connection is gone."""
        self._connections.dec()
        self._closes.labels(self._model_name, str(code)).inc()

    def count_failure(self, code: str, number: int = 1) -> None:
        """Requests were refused or failed here; the scheduler counts those it fails."""
        self._failures.labels(self._model_name, code).inc(number)

    def snapshot(self) -> MetricsSnapshot:
        """All families."""
        return snapshot_of(self._registry)
