import ctypes
import importlib.util
from typing import Any

import pytest

from actors.node.gpus import GENERATIONS, Gpus, find_gpus
from cuda.gpu.backends.cubins import ARCHITECTURES


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
