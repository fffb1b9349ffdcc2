"""The one thread that a worker's device lives on: made, loaded, run and closed there.

The next plan waits right beside the device while a step runs, or is queued on a device that can hold it, so the device
sits idle only when no plan is there. Owns the two measures of that: `duration_s` and `gap_s` of every StepResult. Never
touches actor state: what it has to say is posted to the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from cuda.devices.device import Device, PipelinedDevice, PoolInfo
from protocol.step import MAX_IN_FLIGHT, StepPlan, StepResult

POLL_S = 50e-6
"""How often a device is asked while the next plan may come: nothing can wake the thread for both."""


class Listener(Protocol):
    """Who hears from the device; all calls are made on the event loop."""

    def device_progressed(self, fraction: float) -> None:
        """Loading has come this far, 0..1."""

    def device_exported(self, handle: bytes) -> None:
        """The shard is loaded; `open_peers` is awaited."""

    def device_loaded(self, pool: PoolInfo, load_s: float) -> None:
        """Plans may be executed."""

    def step_completed(self, result: StepResult) -> None:
        """The device has executed a plan."""

    def device_failed(self, error: Exception) -> None:
        """The device is lost; nothing more comes."""


class DeviceThread:
    """Runs `make_device()` and then plans, in order, until `close`. One that has peers meets them in between."""

    def __init__(
        self, make_device: Callable[[], Device], listener: Listener, *, name: str, has_peers: bool = False
    ) -> None:
        self._make_device = make_device
        self._listener = listener
        self._has_peers = has_peers
        self._handles: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()  # one message in its life
        self._loop: asyncio.AbstractEventLoop
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()  # the actor bounds it: it knows what it has handed in
        self._ended = asyncio.Event()
        self.running: tuple[int, float] | None = None
        """The step that runs and since when (time.perf_counter); written by the thread only."""
        self._thread = Thread(target=self._run, name=name, daemon=True)  # a stuck kernel must not keep the process

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to load; `loop` is where the listener lives."""
        self._loop = loop
        self._thread.start()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """Let the device meet its peers, whose handles are these, in rank order."""
        self._handles.put(handles)

    def execute(self, plan: StepPlan) -> None:
        """Hand in the next plan."""
        self._plans.put(plan)

    async def close(self, timeout_s: float) -> None:
        """Let the plans handed in end and close the device; gives up waiting after `timeout_s`."""
        if self._thread.ident is None:
            return  # never started
        self._handles.put(None)
        self._plans.put(None)
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return  # a daemon thread: it ends with the process

    # ---- on the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._live()
        except Exception as error:  # noqa: BLE001 - handed to the actor, which fails with it
            self._post(self._listener.device_failed, error)
        finally:
            self._post(self._ended.set)

    def _live(self) -> None:
        begin = time.perf_counter()
        device = self._make_device()
        try:
            self._serve(device, begin)
        except Exception as error:
            try:
                device.close()
            except Exception as second:  # noqa: BLE001 - a lost GPU fails in all that is asked of it: the first counts
                error.add_note(f"closing the device failed too: {second}")
            raise
        device.close()

    def _serve(self, device: Device, begin: float) -> None:
        pool = device.load(lambda fraction: self._post(self._listener.device_progressed, fraction))
        load_s = time.perf_counter() - begin
        if self._has_peers and not self._meet_peers(device):
            return
        self._post(self._listener.device_loaded, pool, load_s)
        if isinstance(device, PipelinedDevice):
            self._queue_plans(device)
        else:
            self._execute_plans(device)

    def _meet_peers(self, device: Device) -> bool:
        """False if it is closed before the others have exported."""
        self._post(self._listener.device_exported, device.export())
        handles = self._handles.get()
        if handles is None:
            return False
        device.open_peers(handles)
        return True

    def _execute_plans(self, device: Device) -> None:
        idle_since: float | None = None
        while (plan := self._plans.get()) is not None:
            begin = time.perf_counter()
            self.running = (plan.step, begin)
            gap_s = begin - idle_since if idle_since is not None and _continues(plan) else 0.0
            result = device.execute(plan)
            idle_since = time.perf_counter()
            self.running = None
            result = replace(result, duration_s=idle_since - begin, gap_s=gap_s)
            self._post(self._listener.step_completed, result)

    def _queue_plans(self, device: PipelinedDevice) -> None:
        """Queue each plan on the device as soon as it is there, behind the one that runs."""
        queued: deque[_Queued] = deque()
        is_open = True
        while is_open or queued:
            if not is_open or len(queued) == MAX_IN_FLIGHT:
                self._answer(device.wait(), queued)
                continue
            try:
                plan = self._plans.get(timeout=POLL_S if queued else None)
            except Empty:
                if (result := device.poll()) is not None:
                    self._answer(result, queued)
                continue
            is_open = plan is not None
            if plan is not None:
                self.running = self.running or (plan.step, time.perf_counter())
                idle_s = device.submit(plan)
                queued.append(_Queued(plan.step, idle_s if _continues(plan) else 0.0))

    def _answer(self, result: StepResult, queued: "deque[_Queued]") -> None:
        gap_s = queued.popleft().gap_s
        self.running = (queued[0].step, time.perf_counter()) if queued else None
        self._post(self._listener.step_completed, replace(result, gap_s=gap_s))

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)


class _Queued(NamedTuple):
    """A step on the device."""

    step: int
    gap_s: float


def _continues(plan: StepPlan) -> bool:
    """Whether some row was running before: only then was the device kept waiting; else nobody wanted anything."""
    return len(plan.rows) > len(plan.starts)
