"""From a device's name to the device: the only place where a worker imports one, and only the one that it runs."""

from dataclasses import replace

from actors.worker.config import WorkerConfig
from cuda.devices.device import Device
from protocol.errors import PartFailed

EMULATED_POOL_BYTES = 128 << 20
"""Of a KV pool that nobody sized: what is free is the host's, and the emulator fills what it gives."""


def open_device(config: WorkerConfig) -> Device:
    """Make the device named by `config.device`. PartFailed, in one line, if this machine or version has no such one."""
    kind, _, number = config.device.partition(":")
    match kind:
        case "cpu":
            from cuda.cpu.device import CpuDevice  # noqa: PLC0415 - imports torch, as only this worker's process may

            return CpuDevice(config.device_config)
        case "cuda":
            return _gpu(config, int(number))
        case "emu":
            return _emulated(config, int(number))
        case "counting":
            from cuda.devices.counting import CountingDevice  # noqa: PLC0415 - a device of tests and load tests

            return CountingDevice(config.device_config, (config.simulated.counting_step_ms or 0) / 1000)
        case _:
            raise PartFailed(f"device {config.device!r}: there are cuda:N, cpu:N and emu:N")


def _gpu(config: WorkerConfig, number: int) -> Device:
    from cuda.gpu.backends.gpu import GpuBackend  # noqa: PLC0415 - as above
    from cuda.gpu.backends.nvrtc import MissingPart  # noqa: PLC0415 - as above
    from cuda.gpu.device import GpuDevice  # noqa: PLC0415 - as above

    try:
        return GpuDevice(config.device_config, GpuBackend(number))
    except MissingPart as error:
        raise PartFailed(f"{error}") from error


def _emulated(config: WorkerConfig, number: int) -> Device:
    from cuda.emulator import Settings, ToolchainError  # noqa: PLC0415 - as above
    from cuda.emulator.build import find_toolchain  # noqa: PLC0415 - as above
    from cuda.gpu.backends.emulated import EmulatedBackend  # noqa: PLC0415 - as above
    from cuda.gpu.device import GpuDevice  # noqa: PLC0415 - as above

    device = config.device_config
    if device.num_pages is None and device.kv_memory is None:
        device = replace(device, kv_memory=EMULATED_POOL_BYTES)
    try:
        find_toolchain()
    except ToolchainError as error:
        raise PartFailed(f"device {config.device}: {error}") from error
    # A kernel gives up on a peer by its own deadline; the emulator's watchdog is for what has none.
    watchdog_s = Settings.watchdog_s + device.peer_timeout_s
    settings = Settings(
        mode=config.simulated.emu_mode, seed=config.simulated.emu_seed, device=number, watchdog_s=watchdog_s
    )
    return GpuDevice(device, EmulatedBackend(settings))
