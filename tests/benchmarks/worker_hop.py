"""What one step costs beside the device: a scheduler's stub, the worker actor and a device that costs nothing.

    python -m tests.benchmarks.worker_hop [--rows 32] [--steps 3000] [--step-ms 0]

Prints microseconds a step, with one plan in flight (the whole round trip) and with two (what overlap leaves of it), in
one process and with the worker in a process of its own. Every result is checked to be the next step's.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import structlog
import uvloop

from actors.node.children import CAPACITIES, inbox_of, ref_to, socket_of
from actors.runtime.actor import Actor
from actors.runtime.mailbox import Runner
from actors.runtime.ref import ActorRef
from actors.runtime.transport import serve_mailbox
from actors.worker.actor import WorkerActor
from actors.worker.config import WorkerConfig
from cuda.devices.device import PoolInfo
from protocol.messages import (
    ExecuteStep,
    SchedulerInbox,
    StepCompleted,
    WorkerInbox,
    WorkerReady,
)
from protocol.step import SampledRow, StepPlan, StepResult, StepRow
from tests.actors.runtime.local import LocalSystem
from tests.actors.worker.devices import SHARD

CONFIG = WorkerConfig(index=0, group="0", device="idle", model_name="m", device_config=SHARD)


class IdleDevice:
    """Answers at once, or after sleeping."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        progress(1.0)
        return PoolInfo(1, 16, 0, 0)

    def export(self) -> bytes:
        return b""

    def open_peers(self, handles: Sequence[bytes]) -> None:
        pass

    def execute(self, plan: StepPlan) -> StepResult:
        if self._step_s:
            time.sleep(self._step_s)
        return StepResult(plan.epoch, plan.step, [SampledRow(row.slot, row.slot, 0, 7) for row in plan.rows])

    def close(self) -> None:
        pass


class Pusher(Actor[SchedulerInbox]):
    """Keeps `in_flight` plans at the worker until `num_steps` are done."""

    def __init__(self, num_rows: int, num_steps: int, in_flight: int) -> None:
        self.worker: ActorRef[WorkerInbox]
        self._rows = [StepRow(slot, 100, 1, samples=True) for slot in range(num_rows)]
        self._num_steps = num_steps
        self._in_flight = in_flight
        self._sent = 0
        self._received = 0
        self._began = 0.0
        self.began = asyncio.Event()
        self.seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def receive(self, message: SchedulerInbox) -> None:
        match message:
            case WorkerReady():
                self.began.set()
                self._began = time.perf_counter()
                for _ in range(self._in_flight):
                    await self._push()
            case StepCompleted(_, result):
                assert result.step == self._received
                self._received += 1
                if self._received == self._num_steps:
                    self.seconds.set_result(time.perf_counter() - self._began)
                elif self._sent < self._num_steps:
                    await self._push()
            case _:
                raise AssertionError(message)

    async def _push(self) -> None:
        await self.worker.tell(ExecuteStep(StepPlan(1, self._sent, [], self._rows)))
        self._sent += 1


@dataclass(frozen=True)
class Cost:
    """Seconds of the whole run."""

    wall_s: float
    cpu_s: float
    """Of all processes: what it costs on a machine where others compute too."""


async def in_one_process(pusher: Pusher, step_s: float) -> Cost:
    async with LocalSystem() as system:
        scheduler = system.start(pusher, name="scheduler")
        pusher.worker = system.start(WorkerActor(CONFIG, lambda: IdleDevice(step_s), scheduler), name="worker:0")
        before = time.process_time()
        wall_s = await pusher.seconds
        return Cost(wall_s, time.process_time() - before)


async def across_processes(pusher: Pusher, step_s: float) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        worker = multiprocessing.get_context("spawn").Process(target=be_worker, args=(run_dir, step_s), daemon=True)
        worker.start()
        ref = ref_to(run_dir, "worker:0", inbox_of(print))
        pusher.worker = ref
        runner = Runner(pusher, name="scheduler", capacity=CAPACITIES["scheduler"])
        async with serve_mailbox(runner.mailbox, socket_of(run_dir, "scheduler"), SchedulerInbox):
            running = asyncio.create_task(runner.run())
            await pusher.began.wait()
            before = time.process_time() + cpu_s(worker.pid)
            wall_s = await pusher.seconds
            spent = time.process_time() + cpu_s(worker.pid) - before
            running.cancel()
            await asyncio.wait([running])
        await ref.close()
        worker.kill()
        worker.join()
        return Cost(wall_s, spent)


def cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def be_worker(run_dir: Path, step_s: float) -> None:
    async def live() -> None:
        actor = WorkerActor(CONFIG, partial(IdleDevice, step_s), ref_to(run_dir, "scheduler", inbox_of(print)))
        runner = Runner(actor, name="worker:0", capacity=CAPACITIES["worker"])
        async with serve_mailbox(runner.mailbox, socket_of(run_dir, "worker:0"), WorkerInbox):
            await runner.run()

    uvloop.run(live())


async def measure(arguments: argparse.Namespace) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    print(
        f"{arguments.rows} rows, {arguments.steps} steps, device {arguments.step_ms} ms; microseconds a step beside it"
    )
    for place in (in_one_process, across_processes):
        for in_flight in (1, 2):
            pusher = Pusher(arguments.rows, arguments.steps, in_flight)
            cost = await place(pusher, arguments.step_ms / 1000)
            wall_us = 1e6 * cost.wall_s / arguments.steps - 1000 * arguments.step_ms
            cpu_us = 1e6 * cost.cpu_s / arguments.steps
            print(f"{place.__name__:18} {in_flight} in flight: {wall_us:7.1f} wall {cpu_us:7.1f} CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--step-ms", type=float, default=0.0)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
