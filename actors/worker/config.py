"""What one worker is told when it is created."""

from typing import Literal

from msgspec import Struct

from cuda.devices.device import DeviceConfig
from protocol.bounds import Count, PositiveCount, Sequence63


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """One worker: which device it runs and the shard that it loads."""

    index: Count
    """Its number among all workers; its name is `worker:{index}`."""
    group: str
    """Label of the group whose plans it runs: the group's number among all groups."""
    rank: Count = 0
    """Its place in the group, which is also the place of its shard in the model."""
    world_size: PositiveCount = 1
    """Ranks of the group."""
    peer_timeout_s: float = 10.0
    """How long it waits for another rank within a step."""
    peer_to_peer: bool = True
    """Whether the group's GPUs reach each other's memory."""
    epoch: Count = 1
    """Which life of this worker this is; plans of other epochs are dropped."""
    device: str
    """`cpu:0`, `counting`, ..."""
    model_name: str
    folder: str
    """A Hugging Face model folder."""
    dtype: str = "auto"
    page_size: PositiveCount = 16
    num_pages: PositiveCount | None = None
    kv_memory: Sequence63 | None = None
    """Bytes of the KV pool; with `num_pages` None too, the device sizes its pool from free memory."""
    max_running: PositiveCount = 256
    max_model_len: PositiveCount
    step_tokens: PositiveCount = 512
    quantization: str = "none"
    batch_invariant: bool = False
    num_threads: PositiveCount = 1
    cores: tuple[Count, ...] = ()
    """CPU cores that its process keeps to; empty: wherever the kernel puts it."""
    emu_mode: Literal["fast", "check"] = "fast"
    """What `emu` devices look for: see `cuda.emulator.Settings`."""
    emu_seed: Count = 0
    """Chooses the schedules of `emu` devices."""
    counting_step_s: float = 0.0
    """How long a step of the counting device takes."""
    step_deadline_s: float = 60.0
    """A step that takes longer makes the worker unhealthy."""

    def device_config(self) -> DeviceConfig:
        """The part that the device needs."""
        return DeviceConfig(
            folder=self.folder,
            dtype=self.dtype,
            page_size=self.page_size,
            num_pages=self.num_pages,
            kv_memory=self.kv_memory,
            max_running=self.max_running,
            max_model_len=self.max_model_len,
            max_step_tokens=self.step_tokens,
            quantization=self.quantization,
            batch_invariant=self.batch_invariant,
            num_threads=self.num_threads,
            rank=self.rank,
            world_size=self.world_size,
            peer_timeout_s=self.peer_timeout_s,
            peer_to_peer=self.peer_to_peer,
        )
