"""What the ingress knows of the engine behind it. Written by the actor alone; read by connections and pages."""

from dataclasses import dataclass

from protocol.errors import RequestError


@dataclass(slots=True)
class EngineStatus:
    """Before EngineReady `max_model_len` is the model's own limit."""

    max_model_len: int
    is_ready: bool = False
    is_draining: bool = False
    is_drained: bool = False
    """All streams have ended: no connection stays open."""

    def check_open(self) -> None:
        """Raise RequestError when no new request can be taken now."""
        if self.is_draining:
            raise RequestError("draining", "the server is shutting down and takes no new requests")
        if not self.is_ready:
            raise RequestError("overloaded", "the model is still being loaded", retry_after_ms=1000)
