"""Addresses of a node's actors: one Unix socket each in its run directory, and what their messages have in common."""

from pathlib import Path
from typing import Any

from actors.runtime.transport import Dialect, RemoteRef
from protocol.messages import (
    CollectMetrics,
    Drain,
    Drained,
    GetHealth,
    Health,
    MetricsSnapshot,
    SchedulerFailed,
    WorkerFailed,
)

CONTROL = (GetHealth, CollectMetrics, Drain, WorkerFailed, SchedulerFailed)
"""Messages whose order among the others does not matter: they go by sockets of their own."""

DIALECT = Dialect(
    replies={GetHealth: Health, CollectMetrics: MetricsSnapshot, Drain: Drained | None},
    is_control=lambda message: isinstance(message, CONTROL),
)
CAPACITIES = {"ingress": 4096, "scheduler": 8192, "worker": 64}
"""Messages a mailbox holds before its senders wait."""
CONNECT_TIMEOUT_S = 10.0
"""Children start together: the slowest to import must not be taken for dead."""


def ref_to(run_dir: Path, name: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> RemoteRef[Any]:
    """Return a ref to the actor `name` of this node."""
    return RemoteRef(socket_of(run_dir, name), name, DIALECT, connect_timeout_s=connect_timeout_s)


def socket_of(run_dir: Path, name: str) -> Path:
    """Return where an actor's mailbox is served."""
    return run_dir / f"{name.replace(':', '-')}.sock"


def worker_names(num_workers: int) -> list[str]:
    """Return the names of all workers."""
    return [f"worker:{index}" for index in range(num_workers)]
