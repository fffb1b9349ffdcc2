"""From a device's name to the device: the only place where a worker imports one, and only the one that it runs."""

from actors.worker.config import WorkerConfig
from cuda.devices.device import Device
from protocol.errors import PartFailed


def open_device(config: WorkerConfig) -> Device:
    """Make the device named by `config.device`. Raises PartFailed for a kind that this version does not have."""
    kind = config.device.partition(":")[0]
    if kind == "cpu":
        from cuda.devices.cpu import CpuDevice  # noqa: PLC0415 - imports torch, which only this worker's process may pay

        return CpuDevice(config.device_config())
    if kind == "counting":
        from cuda.devices.counting import CountingDevice  # noqa: PLC0415 - a device of tests and load tests

        return CountingDevice(config.device_config(), config.counting_step_s)
    raise PartFailed(f"device {config.device!r}: this version has cpu devices only (cpu, cpu:N)")
