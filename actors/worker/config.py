"""What one worker is told when it is created."""

from typing import Literal

from msgspec import Struct

from cuda.devices.device import DeviceConfig
from protocol.bounds import Count


class SimulatedConfig(Struct, frozen=True, kw_only=True):
    """How devices behave that have no hardware of their own; all workers are told the same."""

    emu_mode: Literal["fast", "check"] = "fast"
    """What `emu` devices look for: see `cuda.emulator.Settings`."""
    emu_seed: Count = 0
    """Chooses the schedules of `emu` devices."""
    counting_step_ms: Count | None = None
    """How long a step of the counting device takes."""


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """One worker: which device it runs and the shard that it loads."""

    index: Count
    """Its number among all workers; its name is `worker:{index}`."""
    group: str
    """Label of the group whose plans it runs: the group's number among all groups."""
    epoch: Count = 1
    """Which life of this worker this is; plans of other epochs are dropped."""
    model_name: str
    device: str
    """`cpu:0`, `counting`, ..."""
    device_config: DeviceConfig
    cores: tuple[Count, ...] = ()
    """CPU cores that its process keeps to; empty: wherever the kernel puts it."""
    simulated: SimulatedConfig = SimulatedConfig()
    step_deadline_s: float = 60.0
    """A step that takes longer makes the worker unhealthy."""
