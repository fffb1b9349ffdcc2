"""Whether this machine has what the devices that were asked for need; asked before any process is started for them."""

from pathlib import Path

import structlog

from actors.node.config import NodeConfig
from actors.node.gpus import find_gpus
from actors.node.settings import ConfigError
from cuda.emulator.errors import ToolchainError
from cuda.emulator.toolchain import find_toolchain
from cuda.gpu.backends.errors import MissingPart
from cuda.gpu.backends.nvrtc import find_compiler

NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""Where NVIDIA's driver is loaded."""

log = structlog.get_logger()


def check_devices(config: NodeConfig) -> None:
    """Raise ConfigError with what is missing and how to get it; log why a GPU that is there is left unused."""
    if all(device.startswith("cpu:") for device in config.devices) and NVIDIA_DEVICE.exists():
        log.info("the CPU serves although there is NVIDIA's driver", gpus=find_gpus().hindrance or "not asked for")
    for device in config.devices:
        check_device(device)


def check_device(device: str) -> None:
    """Raise ConfigError with what a device lacks and how to get it."""
    if device.startswith("cuda:"):
        _check_gpu(device)
    if device.startswith("emu:"):
        try:
            find_toolchain()
        except ToolchainError as error:
            raise ConfigError(f"--devices: {error}") from None


def _check_gpu(device: str) -> None:
    found = find_gpus()
    usable = [f"cuda:{index}" for index in found.usable]
    if device not in usable:
        reason = found.hindrance or f"there are {', '.join(usable)}"
        raise ConfigError(f"--devices: {device} cannot be used: {reason}")
    try:
        find_compiler()
    except MissingPart as error:
        raise ConfigError(f"--devices: {error}") from None
