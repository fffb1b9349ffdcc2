"""The gpu device in the emulator, for models small enough to be run there."""

from pathlib import Path
from typing import Any

from cuda.backends.emulated import EmulatedBackend
from cuda.devices.device import DeviceConfig
from cuda.devices.gpu import GpuDevice
from cuda.emulator import Settings
from cuda.emulator.build import Mode
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.models.tiny import Variant, tiny_model

HEAD_DIM = 64
"""The least that attention has a kernel for."""


def small_model(folder: Path, variant: Variant = "llama", **overrides: Any) -> Path:
    """A tiny model with heads that the kernels take, and few of them: the emulator's time goes with the weights."""
    heads = {"head_dim": HEAD_DIM, "num_attention_heads": 2, "num_key_value_heads": 1}
    return tiny_model(folder, variant, **{**heads, "hidden_size": 32, "intermediate_size": 48, **overrides})


def emulated_device(config: DeviceConfig, mode: Mode = "fast", seed: int = 0) -> GpuDevice:
    return GpuDevice(config, EmulatedBackend(Settings(mode=mode, seed=seed)))


def emulated_driver(folder: Path, mode: Mode = "fast", seed: int = 0, **overrides: Any) -> Driver:
    config = config_for(folder, **{"max_model_len": 128, **overrides})
    return Driver(config, emulated_device(config, mode, seed))
