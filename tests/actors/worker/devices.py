"""Devices whose steps a test holds in its hand."""

import threading
from collections.abc import Callable, Sequence

from cuda.devices.device import DeviceConfig, PoolInfo
from protocol.step import SampledRow, StepPlan, StepResult, StepRow

POOL = PoolInfo(num_pages=64, page_size=16, weights_bytes=1000, kv_bytes=2000)
SHARD = DeviceConfig(
    folder="/nowhere", max_running=256, max_model_len=100, max_step_tokens=512, num_threads=1, peer_timeout_s=10.0
)


class HandDevice:
    """Answers token 7 for every sampling row; `gate` holds it inside `execute`, `load_gate` inside `load`."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.executed: list[int] = []
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.error: Exception | None = None
        self.peers: list[bytes] = []

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        self.threads.add(threading.get_ident())
        progress(0.5)
        self.load_gate.wait(10)
        return POOL

    def export(self) -> bytes:
        self.threads.add(threading.get_ident())
        return b"mine"

    def open_peers(self, handles: Sequence[bytes]) -> None:
        self.threads.add(threading.get_ident())
        self.peers += handles

    def execute(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.get_ident())
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.executed.append(plan.step)
        return StepResult(plan.epoch, plan.step, [SampledRow(row.slot, 0, 0, 7) for row in plan.rows if row.samples])

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed.set()


def plan_of(step: int, *, epoch: int = 1) -> StepPlan:
    return StepPlan(epoch, step, [], [StepRow(0, step, 1, samples=True)])
