"""The engine without sockets, processes or clock: the pure scheduler and a device, in one thread."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.scheduler.scheduler import Scheduler
from cuda.devices.device import Device
from protocol.messages import RequestFailed, RequestFinished, Submit, TokensGenerated
from protocol.step import StepResult


@dataclass
class Run:
    """What came of some requests."""

    outputs: dict[int, list[int]]
    terminal: dict[int, RequestFinished | RequestFailed] = field(default_factory=dict)
    num_steps: int = 0
    device_s: float = 0.0


def run(scheduler: Scheduler, device: Device, requests: Sequence[Submit]) -> Run:
    """Submit all at once and step until nothing is left; with overlap a plan is made before the last is applied."""
    found = Run({request.request: list(request.output_tokens) for request in requests})
    for request in requests:
        scheduler.submit(request, 0.0)
    results: deque[StepResult] = deque()
    while True:
        now = float(found.num_steps)
        while (plan := scheduler.plan(0, now)) is not None:
            begin = time.perf_counter()
            results.append(device.execute(plan))
            found.device_s += time.perf_counter() - begin
            found.num_steps += 1
        if not results:
            return found
        scheduler.complete(0, results.popleft(), now)
        _collect(scheduler, found)


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
