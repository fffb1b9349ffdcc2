import pytest

from actors.node.config import resolve
from actors.node.gpus import Gpus
from actors.node.machine import check_devices
from actors.node.settings import ConfigError


def complaint(device: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_devices(resolve(["--devices", device], {}).config)
    line = str(caught.value)
    assert line.startswith("--devices: ")
    assert "\n" not in line
    return line


def test_a_gpu_that_is_not_there_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "actors.node.machine.find_gpus", lambda: Gpus((), "there is no NVIDIA driver here; install one")
    )
    assert complaint("cuda:0") == "--devices: cuda:0 cannot be used: there is no NVIDIA driver here; install one"
    monkeypatch.setattr("actors.node.machine.find_gpus", lambda: Gpus((0, 1), ""))
    assert complaint("cuda:2") == "--devices: cuda:2 cannot be used: there are cuda:0, cuda:1"


def test_the_emulator_without_its_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    line = complaint("emu:0")
    assert "no-such-compiler" in line
    assert "install" in line


def test_what_needs_nothing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_devices(resolve(["--devices", "cpu,counting"], {}).config)
