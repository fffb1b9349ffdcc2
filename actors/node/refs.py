"""Addresses of a node's actors: one Unix socket each in its run directory, and what their messages have in common."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from actors.runtime.channel import RemoteRef
from actors.runtime.ref import Inbox
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

REPLIES: dict[type, Any] = {GetHealth: Health, CollectMetrics: MetricsSnapshot, Drain: Drained | None}
"""What each question is answered with; the scheduler answers Drain with None while requests run."""
CAPACITIES = {"ingress": 256, "scheduler": 8192, "worker": 64}
"""Messages a mailbox holds before its senders wait."""
CONNECT_TIMEOUT_S = 10.0
"""Children start together: the slowest to import must not be taken for dead."""


def inbox_of(on_refused: Callable[[str], None]) -> Inbox:
    """Return what all refs of a process have in common."""
    return Inbox(REPLIES, CONTROL, on_refused)


def ref_to(run_dir: Path, name: str, inbox: Inbox, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> RemoteRef[Any]:
    """Return a ref to the actor `name` of this node."""
    return RemoteRef(socket_of(run_dir, name), name, inbox, connect_timeout_s=connect_timeout_s)


def socket_of(run_dir: Path, name: str) -> Path:
    """Return where an actor's mailbox is served."""
    return run_dir / f"{name.replace(':', '-')}.sock"


def worker_names(num_workers: int) -> list[str]:
    """Return the names of all workers."""
    return [f"worker:{index}" for index in range(num_workers)]


def grouped_worker_names(group_sizes: Sequence[int]) -> list[list[str]]:
    """Return the names of each group's workers, in rank order: they are numbered through."""
    names = iter(worker_names(sum(group_sizes)))
    return [list(islice(names, size)) for size in group_sizes]
