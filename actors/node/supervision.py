"""A node's life once its configuration stands: start the children, say when ready, drain on a signal, end.

What ends it: SIGTERM or SIGINT (drain; a second one: at once), or a child that dies (the others are told, so that every
live request ends in a typed `failed`, then exit 1).
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import structlog

from actors.node import children, sharing
from actors.node.config import NodeConfig
from actors.node.startup import LoadingDisplay, url_of
from actors.runtime.channel import RemoteRef
from actors.runtime.child import HANDED_SIGNALS, ChildReport, Progressed, Ready
from actors.runtime.ref import ActorStopped
from actors.runtime.supervisor import Death, Supervisor
from cuda.models.folder import read_spec
from protocol.messages import Drain, SchedulerFailed, WorkerFailed
from protocol.model_info import ModelInfo

CHILD_MODULE = "actors.node.children"
LAST_WORDS_S = 3.0
"""How long clients of a broken node may take to receive their last events."""
BROKEN_STOP_TIMEOUT_S = 2.0
"""How long the rest of a broken node may take to end: what waits for a part that is dead or stopped never will."""
DRAIN_MARGIN_S = 5.0
"""Beyond the deadline: what the ingress needs to close its sockets."""
CONNECT_TIMEOUT_S = 0.5
"""To a child that has been there: one that does not listen is dead."""

log = structlog.get_logger()
INBOX = children.inbox_of(lambda reason: log.error("a message of the node was refused", reason=reason))


class Moment(Enum):
    """What happens once in a node's life."""

    READY = "ready"
    DRAINED = "drained"


class Supervision:
    """One run of a node."""

    def __init__(self, config: NodeConfig, model: ModelInfo, listener: socket.socket, run_dir: Path) -> None:
        self._config = config
        self._model = model
        kv_memory = sharing.kv_memory(config, read_spec(Path(model.folder)))
        self._workers = sharing.worker_configs(config, model, kv_memory=kv_memory, unfit=sharing.unfit_groups(config))
        self._listener = listener
        self._run_dir = run_dir
        self._events: asyncio.Queue[Moment | signal.Signals | Death] = asyncio.Queue()
        """All that this node reacts to; a handful in its life."""
        self._is_ready = False
        self._display = LoadingDisplay("loading")
        self._children = Supervisor(self._on_report, self._events.put_nowait)

    async def run(self) -> int:
        """Return the exit code."""
        loop = asyncio.get_running_loop()
        for handled in HANDED_SIGNALS:
            loop.add_signal_handler(handled, self._events.put_nowait, handled)
        self._remove_ready_file()  # of an earlier node that was killed
        async with self._children:
            try:
                return await self._live()
            finally:
                if self._is_ready_file_ours():
                    self._remove_ready_file()

    async def _live(self) -> int:
        with self._display:
            await self._start_children()
            event = await self._events.get()
        if event is Moment.READY:
            self._announce()
            event = await self._events.get()
            if isinstance(event, signal.Signals):
                return await self._drain()
        if isinstance(event, Death):
            return await self._collapse(event)
        return 0  # a signal while loading: nobody is served yet

    async def _start_children(self) -> None:
        """Workers first: they take longest. Leaving the supervisor stops them last."""
        config, model = self._config, self._model
        place = (str(self._run_dir), os.getpid(), config.process)
        start = partial(self._children.start, module=CHILD_MODULE)
        workers = self._workers
        for name, worker in zip(children.worker_names(len(workers)), workers, strict=True):
            await start(name, children.WorkerSpec(*place, worker), environment=sharing.environment_of(worker))
        scheduler = children.SchedulerSpec(
            *place, config.scheduler, model, tuple(group.size for group in config.groups)
        )
        await start("scheduler", scheduler, environment=sharing.OFFLINE)
        descriptor = self._listener.fileno()
        ingress = children.IngressSpec(*place, config.ingress, model, len(workers), descriptor)
        await start("ingress", ingress, environment=sharing.OFFLINE, descriptors=[descriptor])

    def _on_report(self, name: str, report: ChildReport) -> None:
        match report:
            case Progressed(fraction):
                self._display.show(name, fraction)
            case Ready():
                if name == "ingress" and not self._is_ready:
                    self._is_ready = True
                    self._events.put_nowait(Moment.READY)
            case _:
                assert_never(report)

    def _announce(self) -> None:
        url = url_of(self._config, self._listener)
        if self._config.ready_file is not None:
            facts = {"url": url, "pid": os.getpid(), "actors": self._children.pids}
            partial_file = Path(f"{self._config.ready_file}.{os.getpid()}")
            partial_file.write_text(json.dumps(facts), encoding="utf-8")
            partial_file.replace(self._config.ready_file)  # readers see all of it or nothing
        sys.stdout.write(f"tokenstage ready on {url} (model {self._model.name}, {named_devices(self._config)})\n")
        sys.stdout.flush()

    # ---- the end ----------------------------------------------------------------------------------------------------

    async def _drain(self) -> int:
        log.info("draining, a second signal ends at once", timeout_s=self._config.drain_timeout_s)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(self._wait_drained(), name="drain")
            event = await self._events.get()
            draining.cancel()
        if event is Moment.DRAINED:
            return 0
        if isinstance(event, Death):
            return await self._collapse(event)
        log.warning("ended at once by a second signal")
        self._children.kill()
        return 1

    async def _wait_drained(self) -> None:
        """The ingress lets nobody in any more and ends what is over its time: the others just run out of work."""
        timeout_s = self._config.drain_timeout_s
        await self._tell_ingress_to_drain(timeout_s, timeout_s + DRAIN_MARGIN_S)
        self._events.put_nowait(Moment.DRAINED)

    async def _collapse(self, death: Death) -> int:
        """Tell the others what has died, so that every live request ends in a typed `failed`; then end."""
        log.error("a part has failed, the node ends", reason=death.reason)
        self._children.stop_timeout_s = BROKEN_STOP_TIMEOUT_S
        if self._is_ready:
            if death.name.startswith("worker:"):
                await self._tell_scheduler_of(death)
            if death.name != "ingress":
                await self._tell_ingress_of(death)
        return 1

    async def _tell_scheduler_of(self, death: Death) -> None:
        """Return when the scheduler has told all requests, which is when it ends."""
        index = int(death.name.partition(":")[2])
        try:
            async with asyncio.timeout(LAST_WORDS_S), self._ref("scheduler") as scheduler:
                await scheduler.tell(WorkerFailed(index, self._workers[index].epoch, death.reason))
                while not (isinstance(event := await self._events.get(), Death) and event.name == "scheduler"):
                    pass
        except (ActorStopped, TimeoutError):
            log.debug("the scheduler had ended")

    async def _tell_ingress_of(self, death: Death) -> None:
        try:
            async with self._ref("ingress") as ingress:
                await ingress.tell(SchedulerFailed(f"the engine has stopped: {death.reason}"))
        except ActorStopped:
            return
        await self._tell_ingress_to_drain(0.0, LAST_WORDS_S)

    async def _tell_ingress_to_drain(self, deadline_s: float, timeout_s: float) -> None:
        try:
            async with self._ref("ingress") as ingress:
                await ingress.ask(Drain(round(deadline_s * 1000)), timeout_s=timeout_s)
        except (ActorStopped, TimeoutError) as error:
            log.warning("the ingress has not drained", error=str(error))

    @asynccontextmanager
    async def _ref(self, name: str) -> AsyncIterator[RemoteRef[Any]]:
        ref = children.ref_to(self._run_dir, name, INBOX, connect_timeout_s=CONNECT_TIMEOUT_S)
        try:
            yield ref
        finally:
            await ref.close()

    def _is_ready_file_ours(self) -> bool:
        """False once another node has written its own to the same path."""
        if self._config.ready_file is None:
            return False
        try:
            return bool(json.loads(Path(self._config.ready_file).read_bytes())["pid"] == os.getpid())
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _remove_ready_file(self) -> None:
        if self._config.ready_file is not None:
            Path(self._config.ready_file).unlink(missing_ok=True)


def named_devices(config: NodeConfig) -> str:
    """Return the devices for the ready line, with the size of groups of several ranks."""
    devices = f"devices {','.join(config.devices)}"
    sizes = dict.fromkeys(group.size for group in config.groups)
    return devices if max(sizes) == 1 else f"{devices}, tp {','.join(map(str, sizes))}"
