"""A node's child processes: their names and sockets, and what each is told about itself.

An actor's configuration is the node's own struct for it; only what differs between workers is made here. Who is created
in a child and wired to whom: `actors.node.child`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from actors.ingress.config import IngressConfig
from actors.node.config import NodeConfig
from actors.node.devices import core_shares, usable_cores
from actors.runtime.channel import RemoteRef
from actors.runtime.ref import Inbox
from actors.scheduler.config import SchedulerConfig
from actors.worker.config import WorkerConfig
from cuda.devices.device import DeviceConfig
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
from protocol.model_info import ModelInfo

CONTROL = (GetHealth, CollectMetrics, Drain, WorkerFailed, SchedulerFailed)
"""Messages whose order among the others does not matter: they go by sockets of their own."""
REPLIES: dict[type, Any] = {GetHealth: Health, CollectMetrics: MetricsSnapshot, Drain: Drained | None}
"""What each question is answered with; the scheduler answers Drain with None while requests run."""
CAPACITIES = {"ingress": 256, "scheduler": 8192, "worker": 64}
"""Messages a mailbox holds before its senders wait."""
CONNECT_TIMEOUT_S = 10.0
"""Children start together: the slowest to import must not be taken for dead."""
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}
"""Models are local: a look-up at the hub would only hang."""


class Place(Struct, frozen=True):
    """What every child is told."""

    run_dir: str
    node_pid: int
    loop: Literal["uvloop", "asyncio"]
    log_level: str
    log_format: Literal["console", "json"]


class ChildSpec(Struct, frozen=True, tag=True):
    """Base of what a child process is told about itself, by its line to the node."""

    place: Place


class SchedulerSpec(ChildSpec, frozen=True):
    """Be the scheduler of groups of workers."""

    config: SchedulerConfig
    model: ModelInfo
    group_sizes: tuple[int, ...]
    """Workers are numbered through, group by group, in rank order."""


class IngressSpec(ChildSpec, frozen=True):
    """Be the ingress on the listening socket that was inherited as `listener`."""

    config: IngressConfig
    model: ModelInfo
    num_workers: int
    listener: int


class WorkerSpec(ChildSpec, frozen=True):
    """Be one worker."""

    config: WorkerConfig


AnySpec = SchedulerSpec | IngressSpec | WorkerSpec


def worker_configs(
    config: NodeConfig,
    model: ModelInfo,
    *,
    kv_memory: Sequence[int | None] | None = None,
    num_cores: int | None = None,
    unfit: Collection[int] = (),
) -> list[WorkerConfig]:
    """Return each worker's part, in the order of `config.devices`; `kv_memory`: of each, if that is not the setting.

    GPUs of the groups in `unfit` do not reach each other's memory.
    CPU workers share the cores evenly; those of a group of several ranks keep to theirs.
    """
    num_workers = len(config.devices)
    num_threads = max(1, (num_cores or usable_cores()) // num_workers)
    shares = core_shares(num_workers)
    settings = asdict(config.device)
    places = [(index, rank, group) for index, group in enumerate(config.groups) for rank in range(group.size)]
    return [
        WorkerConfig(
            index=worker,
            group=str(index),
            model_name=model.name,
            device=group.devices[rank],
            device_config=DeviceConfig(
                **settings if kv_memory is None else {**settings, "kv_memory": kv_memory[worker]},
                folder=model.folder,
                max_running=config.scheduler.max_running,
                max_model_len=model.max_model_len,
                max_step_tokens=config.scheduler.step_tokens,
                num_threads=num_threads,
                rank=rank,
                world_size=group.size,
                peer_timeout_s=config.scheduler.peer_timeout_s,
                peer_to_peer=index not in unfit,
            ),
            cores=shares[worker] if group.size > 1 and group.devices[rank].startswith("cpu") else (),
            simulated=config.simulated,
        )
        for worker, (index, rank, group) in enumerate(places)
    ]


def environment_of(worker: WorkerConfig) -> Mapping[str, str]:
    """Return what must be in a worker's environment before torch is imported there."""
    num_threads = str(worker.device_config.num_threads)
    return {
        **OFFLINE,
        "OMP_WAIT_POLICY": "PASSIVE",  # a spinning team is several times slower beside one busy neighbour
        "OMP_NUM_THREADS": num_threads,
        "MKL_NUM_THREADS": num_threads,
        "NUMBA_NUM_THREADS": num_threads,
    }


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
