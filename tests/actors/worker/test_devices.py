from dataclasses import replace

import pytest

from actors.worker.config import SimulatedConfig, WorkerConfig
from actors.worker.devices import EMULATED_POOL_BYTES, open_device
from cuda.devices.counting import CountingDevice
from cuda.gpu.device import GpuDevice
from protocol.errors import PartFailed
from tests.actors.worker.devices import SHARD
from tests.cuda.kernels.combinations import needs_compiler


def config(device: str, *, kv_memory: int | None = None) -> WorkerConfig:
    return WorkerConfig(
        index=0,
        group="g",
        device=device,
        model_name="m",
        device_config=replace(SHARD, kv_memory=kv_memory),
        simulated=SimulatedConfig(emu_mode="check", emu_seed=7),
    )


@needs_compiler
def test_an_emulated_device_is_the_gpu_device_with_a_small_pool_unless_one_is_asked_for() -> None:
    device = open_device(config("emu:3"))
    assert isinstance(device, GpuDevice)
    assert device._config.kv_memory == EMULATED_POOL_BYTES
    settings = device._backend._settings  # type: ignore[attr-defined] # the emulated backend's own
    assert (settings.mode, settings.seed, settings.device) == ("check", 7, 3)
    device.close()
    sized = open_device(config("emu:0", kv_memory=12345))
    assert isinstance(sized, GpuDevice)
    assert sized._config.kv_memory == 12345
    sized.close()


def test_the_emulator_without_its_compiler_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PartFailed, match=r"^device emu:0: .*`no-such-compiler` was not found: install it[^\n]*$"):
        open_device(config("emu:0"))


def test_a_gpu_that_cannot_be_used_is_refused_in_one_line() -> None:
    with pytest.raises(PartFailed, match=r"^cuda:99: [^\n]*$"):
        open_device(config("cuda:99"))


def test_a_kind_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(PartFailed, match="'tpu:0': there are cuda:N, cpu:N and emu:N"):
        open_device(config("tpu:0"))


def test_the_counting_device_costs_what_is_asked() -> None:
    assert isinstance(open_device(config("counting:0")), CountingDevice)
