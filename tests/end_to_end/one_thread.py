"""The engine without sockets, processes or clock: the pure scheduler and a device, in one thread."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.scheduler.scheduler import Scheduler
from cuda.devices.device import Device, PipelinedDevice
from protocol.messages import RequestFailed, RequestFinished, Submit, TokensGenerated
from protocol.step import StepPlan, StepResult


@dataclass
class Run:
    """What came of some requests."""

    outputs: dict[int, list[int]]
    terminal: dict[int, RequestFinished | RequestFailed] = field(default_factory=dict)
    num_steps: int = 0
    device_s: float = 0.0


def run(scheduler: Scheduler, device: Device, requests: Sequence[Submit]) -> Run:
    """Submit all at once and step until nothing is left; with overlap a plan is made before the last is applied.

    A device that takes a plan while it computes one gets it then.
    """
    found = Run({request.request: list(request.output_tokens) for request in requests})
    for request in requests:
        scheduler.submit(request, 0.0)
    steps = _Queued(device) if isinstance(device, PipelinedDevice) else _Executed(device)
    while True:
        now = float(found.num_steps)
        while (plan := scheduler.plan(0, now)) is not None:
            begin = time.perf_counter()
            steps.begin(plan)
            found.device_s += time.perf_counter() - begin
            found.num_steps += 1
        begin = time.perf_counter()
        result = steps.end()
        found.device_s += time.perf_counter() - begin
        if result is None:
            return found
        scheduler.complete(0, result, now)
        _collect(scheduler, found)


class _Executed:
    """Steps of a device that does one at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._results: deque[StepResult] = deque()

    def begin(self, plan: StepPlan) -> None:
        self._results.append(self._device.execute(plan))

    def end(self) -> StepResult | None:
        return self._results.popleft() if self._results else None


class _Queued:
    """Steps of a device that holds several."""

    def __init__(self, device: PipelinedDevice) -> None:
        self._device = device
        self._num_queued = 0

    def begin(self, plan: StepPlan) -> None:
        self._device.submit(plan)
        self._num_queued += 1

    def end(self) -> StepResult | None:
        if not self._num_queued:
            return None
        self._num_queued -= 1
        return self._device.wait()


def _collect(scheduler: Scheduler, found: Run) -> None:
    for message in scheduler.outbox:
        if isinstance(message, TokensGenerated):
            for delta in message.deltas:
                assert delta.index == len(found.outputs[delta.request])
                found.outputs[delta.request] += delta.tokens
        elif isinstance(message, RequestFinished | RequestFailed):
            assert message.request not in found.terminal
            found.terminal[message.request] = message
    scheduler.outbox.clear()
