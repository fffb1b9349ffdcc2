"""The gpu device in the emulator, for models small enough to be run there."""

from pathlib import Path
from typing import Any

from cuda.devices.device import DeviceConfig
from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.shown import ShownGpuDevice


def emulated_device(config: DeviceConfig, mode: Mode = "fast", seed: int = 0) -> ShownGpuDevice:
    return ShownGpuDevice(config, EmulatedBackend(Settings(mode=mode, seed=seed)))


def emulated_driver(folder: Path, mode: Mode = "fast", seed: int = 0, **overrides: Any) -> Driver:
    config = config_for(folder, **{"max_model_len": 128, **overrides})
    return Driver(config, emulated_device(config, mode, seed))
