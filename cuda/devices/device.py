"""The seam between a worker and whatever computes: one shard of a model, its KV pool, and steps run in order.

Implementations: `cuda.gpu.device.GpuDevice`, `cuda.cpu.device.CpuDevice`, `cuda.devices.counting.CountingDevice`. All
calls come from one thread, and block but for those of `PipelinedDevice`. A device owns no clock but for
`StepResult.duration_s` and the deadline for its peers, knows requests only as row slots, and never retries.

A model may be shared out over the ranks of a group, a device each. Every rank is given the same plans and comes to the
same results; ranks meet in each other's memory, whose handles travel between `load` and the first step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from protocol.step import StepPlan, StepResult


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """What a node's user chooses for all its devices alike; every number is final except the two that size the pool."""

    dtype: str = "auto"
    """`auto`, `float32` or `bfloat16`."""
    page_size: int = 16
    """S, KV slots in a page."""
    num_pages: int | None = None
    """Pages of the pool; None: from `kv_memory`, or from free memory if that is None too."""
    kv_memory: int | None = None
    """Bytes of the pool."""
    quantization: str = "none"
    """`none`, `int8` or `int4`, made at load time."""
    batch_invariant: bool = False


@dataclass(frozen=True, kw_only=True)
class DeviceConfig(DeviceSettings):
    """What a device needs to load its shard."""

    folder: str
    """A Hugging Face model folder."""
    max_running: int
    """Row slots: `0 <= slot < max_running`."""
    max_model_len: int
    """Most tokens (prompt + output) of one request."""
    max_step_tokens: int
    """The budget of one step (T); only a prompt that must not be cut makes a step larger."""
    num_threads: int
    """Compute threads on the CPU."""
    rank: int = 0
    """Of this device within its group: `0 <= rank < world_size`."""
    world_size: int = 1
    """Devices that share out the model."""
    peer_timeout_s: float
    """How long a rank waits for another within a step before it gives up with PeerTimeout."""
    peer_to_peer: bool = True
    """Whether ranks reach each other's memory; GPUs that do not exchange through the library (NCCL)."""


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

    def export(self) -> bytes:
        """After `load`: the handle under which the other ranks find this one's memory; b"" if there are none."""

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """Meet the other ranks: the handles of all, own included, in rank order.

        Called once, between `load` and the first step, on every rank at about the same time: it returns when each
        has been heard of, and raises PeerTimeout naming the one that has not. Does nothing for a world of one.
        """

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; plans of one epoch come in order. Sampled rows are answered in the plan's row order."""

    def close(self) -> None:
        """Free everything; called once, also after a failed load."""


@runtime_checkable
class PipelinedDevice(Device, Protocol):
    """A device that takes the next plan while it still computes one: its queue never runs dry between two steps."""

    def submit(self, plan: StepPlan) -> float:
        """Queue one step behind those queued before.

        Returns how long the device had nothing to do before this step was there, in seconds, as the host saw it.
        """

    def poll(self) -> StepResult | None:
        """The oldest step's result if it is done: each is answered once, with its `duration_s`."""

    def wait(self) -> StepResult:
        """Block until the oldest step is done."""
