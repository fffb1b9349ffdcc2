"""Whether this machine has what the devices that were asked for need; asked before any process is started for them."""

from actors.config import NodeConfig
from actors.gpus import find_gpus
from actors.settings import ConfigError
from cuda.backends.errors import MissingPart
from cuda.backends.nvrtc import find_compiler
from cuda.emulator.errors import ToolchainError
from cuda.emulator.toolchain import find_toolchain


def check_devices(config: NodeConfig) -> None:
    """Raise ConfigError with what is missing and how to get it."""
    wanted = [device for device in config.devices if device.startswith("cuda:")]
    if wanted:
        _check_gpus(wanted)
    if any(device.startswith("emu:") for device in config.devices):
        try:
            find_toolchain()
        except ToolchainError as error:
            raise ConfigError(f"--devices: {error}") from None


def _check_gpus(wanted: list[str]) -> None:
    found = find_gpus()
    usable = [f"cuda:{index}" for index in found.usable]
    for device in wanted:
        if device not in usable:
            reason = found.hindrance or f"there are {', '.join(usable)}"
            raise ConfigError(f"--devices: {device} cannot be used: {reason}")
    try:
        find_compiler()
    except MissingPart as error:
        raise ConfigError(f"--devices: {error}") from None
