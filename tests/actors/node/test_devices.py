"""What this machine has of the devices that were asked for. How they form groups: `test_config`."""

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from actors.node.config import resolve
from actors.node.devices import GENERATIONS, Gpus, check_devices, core_shares, find_gpus, usable_cores
from actors.node.settings import ConfigError
from cuda.gpu.backends.cubins import ARCHITECTURES

ALL = len(os.sched_getaffinity(0))


class Driver:
    """What libcuda answers."""

    def __init__(self, *capabilities: tuple[int, int], error: int = 0) -> None:
        self.capabilities = capabilities
        self.error = error

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - CUDA's name
        return self.error

    def cuDeviceGetCount(self, number: Any) -> None:  # noqa: N802 - CUDA's name
        number._obj.value = len(self.capabilities)

    def cuDeviceGet(self, device: Any, index: int) -> None:  # noqa: N802 - CUDA's name
        device._obj.value = index

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> None:  # noqa: N802 - CUDA's name
        value._obj.value = self.capabilities[device.value][attribute - 75]


def found(driver: Driver, monkeypatch: pytest.MonkeyPatch, *, cupy: bool = True) -> Gpus:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if cupy else None)
    return find_gpus(lambda _name: driver)


def test_gpus_that_kernels_are_made_for_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(Driver((9, 0), (8, 0)), monkeypatch) == Gpus((0, 1), "")
    mixed = found(Driver((7, 5), (8, 9), (12, 0), (10, 3)), monkeypatch)
    assert mixed.usable == (1, 3)
    assert "8.x, 9.x and 10.x" in mixed.hindrance


def test_what_is_taken_for_usable_is_what_kernels_are_compiled_for() -> None:
    assert sorted({int(architecture[3:]) // 10 for architecture in ARCHITECTURES}) == sorted(GENERATIONS)


def test_without_a_driver_there_is_none() -> None:
    gpus = find_gpus(lambda name: ctypes.CDLL(f"/nowhere/{name}"))
    assert gpus.usable == ()
    assert "no NVIDIA driver" in gpus.hindrance


def test_a_driver_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = found(Driver(error=100), monkeypatch)
    assert gpus.usable == ()
    assert "nvidia-smi" in gpus.hindrance


def test_without_cupy_no_gpu_is_usable_and_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = found(Driver((9, 0)), monkeypatch, cupy=False)
    assert gpus.usable == ()
    assert "pip install" in gpus.hindrance


def complaint(device: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_devices(resolve(["--devices", device], {}).config.devices)
    line = str(caught.value)
    assert line.startswith("--devices: ")
    assert "\n" not in line
    return line


def test_a_gpu_that_is_not_there_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "actors.node.devices.find_gpus", lambda: Gpus((), "there is no NVIDIA driver here; install one")
    )
    assert complaint("cuda:0") == "--devices: cuda:0 cannot be used: there is no NVIDIA driver here; install one"
    monkeypatch.setattr("actors.node.devices.find_gpus", lambda: Gpus((0, 1), ""))
    assert complaint("cuda:2") == "--devices: cuda:2 cannot be used: there are cuda:0, cuda:1"


def test_the_emulator_without_its_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    line = complaint("emu:0")
    assert "no-such-compiler" in line
    assert "install" in line


def test_what_needs_nothing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_devices(resolve(["--devices", "cpu,counting"], {}).config.devices)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", ALL), ("50000 100000", 1), ("100000 100000", 1), ("99900000 100000", ALL), ("", ALL)],
)
def test_a_containers_quota_bounds_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert usable_cores(file) == cores


def test_without_a_quota_file_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == ALL


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: dict[int, tuple[int, int]]) -> Path:
    """A folder like the kernel's: logical CPU -> (socket, core); all of them may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(places))
    for cpu, (socket, core) in places.items():
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket}\n")
        (topology / "core_id").write_text(f"{core}\n")
    return tmp_path


def test_hardware_threads_of_a_core_are_in_one_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = machine(tmp_path, monkeypatch, {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)})
    assert core_shares(2, tmp_path / "none", cpus) == [(0, 2), (1, 3)]


def test_cores_of_a_socket_are_in_one_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = machine(tmp_path, monkeypatch, {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)})
    assert core_shares(2, tmp_path / "none", cpus) == [(0, 2), (1, 3)]


def test_shares_are_equal_and_a_core_left_over_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7, 8, 9})
    assert core_shares(2, tmp_path / "none", tmp_path) == [(3, 5), (7, 8)]


@pytest.mark.parametrize(("num_shares", "quota"), [(5, "max 100000"), (2, "300000 100000")])
def test_nobody_keeps_to_cores_where_there_are_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shares: int, quota: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(quota)
    assert core_shares(num_shares, tmp_path / "cpu.max", tmp_path) == [()] * num_shares
