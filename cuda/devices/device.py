"""The seam between a worker and whatever computes: one shard of a model, its KV pool, and steps run in order.

Implementations: `cuda.devices.cpu.CpuDevice`, `cuda.devices.counting.CountingDevice`. All calls block and come from one
thread. A device owns no clock but for `StepResult.duration_s`, knows requests only as row slots, and never retries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.step import StepPlan, StepResult


@dataclass(frozen=True)
class DeviceConfig:
    """What a device needs to load its shard; every number is final except the two that size the pool."""

    folder: str
    """A Hugging Face model folder."""
    dtype: str
    """`auto`, `float32` or `bfloat16`."""
    page_size: int
    """S, KV slots in a page."""
    num_pages: int | None
    """Pages of the pool; None: from `kv_memory`, or from free memory if that is None too."""
    kv_memory: int | None
    """Bytes of the pool."""
    max_running: int
    """Row slots: `0 <= slot < max_running`."""
    max_model_len: int
    """Most tokens (prompt + output) of one request."""
    max_step_tokens: int
    """The budget of one step (T); only a prompt that must not be cut makes a step larger."""
    quantization: str
    """`none`, `int8` or `int4`, made at load time."""
    batch_invariant: bool
    num_threads: int
    """Compute threads on the CPU."""


@dataclass(frozen=True)
class PoolInfo:
    """What `load` made: an empty KV pool and its cost."""

    num_pages: int
    page_size: int
    weights_bytes: int
    kv_bytes: int


class Device(Protocol):
    """One rank's device. Raises whatever its library raises; any exception means that the device is lost."""

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        """Load weights and allocate the KV pool; calls `progress` with a fraction 0..1 now and then."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; plans of one epoch come in order. Sampled rows are answered in the plan's row order."""

    def close(self) -> None:
        """Free everything; called once, also after a failed load."""
