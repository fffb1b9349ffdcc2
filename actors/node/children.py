"""Who is created where and wired to whom; the entry of every child process: `python -m actors.node.children NAME FD`.

    process      actor           tells                      is told by
    ingress      IngressActor    scheduler                  scheduler, node (Drain, SchedulerFailed)
    scheduler    SchedulerActor  ingress, every worker      ingress, workers, node (WorkerFailed)
    worker:i     WorkerActor     scheduler                  scheduler, ingress (GetHealth, CollectMetrics only)

Every mailbox is a Unix socket in the node's private run directory. A process imports its own actor only. What it is
told about itself is a spec, whose configuration is the node's own struct for that actor.
"""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec
import structlog
from msgspec import Struct

from actors.ingress.config import IngressConfig
from actors.node.config import ProcessConfig
from actors.runtime.actor import Actor
from actors.runtime.channel import RemoteRef
from actors.runtime.child import NodeLine, Progressed, Ready, die_with, leave_signals_to_node, run
from actors.runtime.clock import RealClock
from actors.runtime.log import configure_logging
from actors.runtime.mailbox import Runner
from actors.runtime.metrics import RuntimeMetrics
from actors.runtime.ref import ActorStopped, Inbox
from actors.runtime.transport import serve_mailbox
from actors.scheduler.config import SchedulerConfig
from actors.worker.config import WorkerConfig
from protocol.errors import PartFailed
from protocol.messages import (
    CollectMetrics,
    Drain,
    Drained,
    GetHealth,
    Health,
    IngressInbox,
    MetricsSnapshot,
    SchedulerFailed,
    SchedulerInbox,
    WorkerFailed,
    WorkerInbox,
)
from protocol.model_info import ModelInfo

InboxT = TypeVar("InboxT")
log = structlog.get_logger()
SWITCH_INTERVAL_S = 0.0005
"""How long a device's Python may keep the loop of its worker, and so a finished step, waiting; Python's own is 5 ms."""
CONTROL = (GetHealth, CollectMetrics, Drain, WorkerFailed, SchedulerFailed)
"""Messages whose order among the others does not matter: they go by sockets of their own."""
REPLIES: dict[type, Any] = {GetHealth: Health, CollectMetrics: MetricsSnapshot, Drain: Drained}
"""What each question is answered with."""
CAPACITIES = {"ingress": 256, "scheduler": 8192, "worker": 64}
"""Messages a mailbox holds before its senders wait."""
CONNECT_TIMEOUT_S = 10.0
"""Children start together: the slowest to import must not be taken for dead."""


class ChildSpec(Struct, frozen=True, tag=True):
    """What every child process is told about itself, by its line to the node."""

    run_dir: str
    node_pid: int
    process: ProcessConfig


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


def main() -> None:
    """Be the child that the node says this is."""
    leave_signals_to_node()
    name, descriptor = sys.argv[1], int(sys.argv[2])
    line = NodeLine(descriptor)
    try:
        spec = msgspec.json.decode(line.receive_spec(), type=AnySpec)
    except EOFError:
        sys.exit(1)  # the node has ended already
    die_with(spec.node_pid)
    if isinstance(spec, WorkerSpec) and spec.config.cores:
        os.sched_setaffinity(0, spec.config.cores)  # before any library has started or counted its threads
    configure_logging(spec.process.log_level, spec.process.log_format, name)
    code = run(_Child(name, spec, line).live(), spec.process.loop)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the device's thread and its libraries have nothing to save


class _Child:
    """One actor and what it needs around it."""

    def __init__(self, name: str, spec: AnySpec, line: NodeLine) -> None:
        self._name = name
        self._spec = spec
        self._run_dir = Path(spec.run_dir)
        self._line = line
        self._clock = RealClock()
        self._refusals: asyncio.Queue[str] = asyncio.Queue()  # the first one ends this process
        self._inbox = inbox_of(self._refusals.put_nowait)
        self._refs: list[RemoteRef[Any]] = []
        self._runner: Runner[Any]

    async def live(self) -> int:
        """Run the actor until the node asks to stop (0) or it fails (1)."""
        match self._spec:
            case SchedulerSpec():
                return await self._host(self._scheduler(self._spec), SchedulerInbox)
            case IngressSpec():
                return await self._host(self._ingress(self._spec), IngressInbox)
            case WorkerSpec():
                return await self._host(self._worker(self._spec), WorkerInbox)
            case _:
                assert_never(self._spec)

    def _scheduler(self, spec: SchedulerSpec) -> Actor[SchedulerInbox]:
        from actors.scheduler.actor import SchedulerActor  # noqa: PLC0415 - a process imports its own actor only

        groups = [[self._ref(name) for name in names] for names in grouped_worker_names(spec.group_sizes)]
        return SchedulerActor(spec.config, spec.model, self._ref("ingress"), groups, self._clock)

    def _ingress(self, spec: IngressSpec) -> Actor[IngressInbox]:
        from actors.ingress.actor import IngressActor  # noqa: PLC0415 - a process imports its own actor only

        return IngressActor(
            spec.config,
            spec.model,
            self._ref("scheduler"),
            socket.socket(fileno=spec.listener),
            self._clock,
            peers=[self._ref(name) for name in worker_names(spec.num_workers)],
            on_ready=lambda: self._line.report(Ready()),
        )

    def _worker(self, spec: WorkerSpec) -> Actor[WorkerInbox]:
        from actors.worker.actor import WorkerActor  # noqa: PLC0415 - a process imports its own actor only
        from actors.worker.devices import open_device  # noqa: PLC0415 - likewise

        sys.setswitchinterval(SWITCH_INTERVAL_S)
        return WorkerActor(
            spec.config,
            partial(open_device, spec.config),
            self._ref("scheduler"),
            on_progress=lambda fraction: self._line.report(Progressed(fraction)),
        )

    def _ref(self, name: str) -> RemoteRef[Any]:
        ref = ref_to(self._run_dir, name, self._inbox)
        self._refs.append(ref)
        return ref

    async def _host(self, actor: Actor[InboxT], inbox: Any) -> int:  # noqa: ANN401 - a union is no type[InboxT]
        self._runner = Runner(actor, name=self._name, capacity=CAPACITIES[self._name.partition(":")[0]])
        metrics = RuntimeMetrics(actor.registry, self._name, lambda: self._runner.mailbox.depth)
        gc.collect()
        gc.freeze()  # what was imported stays: later collections need not look at it
        async with serve_mailbox(self._runner.mailbox, socket_of(self._run_dir, self._name), inbox):
            code = await self._run_until_stopped(metrics)
            for ref in self._refs:
                await ref.close()
        return code

    async def _run_until_stopped(self, metrics: RuntimeMetrics) -> int:
        try:
            async with asyncio.TaskGroup() as tasks:
                ends = {
                    tasks.create_task(self._runner.run(), name=self._name),
                    tasks.create_task(self._line.wait_stop(), name="wait-stop"),
                    tasks.create_task(self._fail_when_refused(), name="refusals"),
                    tasks.create_task(metrics.sample_lag(self._clock), name="loop-lag"),
                }
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
        except ExceptionGroup as failures:
            cause = failures.exceptions[0]
            traceback = None if isinstance(cause, PartFailed | ActorStopped) else cause  # those say it all
            log.error("actor failed", reason=str(cause), exc_info=traceback)  # noqa: TRY400 - not the group's
            return 1
        return 0

    async def _fail_when_refused(self) -> None:
        """A refused message would be missed for ever: who sends one has broken the protocol and must not go on."""
        raise PartFailed(f"a message of this actor was refused: {await self._refusals.get()}")


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


if __name__ == "__main__":
    main()
