"""`GpuBackend` with a driver that only notes: which code it loads, and what it asks of torch and CuPy."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cuda.gpu.backends.gpu import GpuBackend
from tests.cuda.gpu.backends.sources import TEMPLATE

SOURCE = "scale.cu"
SHARED_BYTES = 100 << 10


class Machine:
    """One GPU of compute capability 8.9 with 4 multiprocessors, which hold 2 blocks each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.launches: list[tuple[str, tuple[Any, ...]]] = []
        self.attributes: list[tuple[str, int, int]] = []
        self.current_stream: object = None
        properties = SimpleNamespace(major=8, minor=9, name="L40S", multi_processor_count=4)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        for name, answer in {
            "is_available": True,
            "device_count": 1,
            "get_device_capability": (8, 9),
            "get_device_name": "L40S",
            "get_device_properties": properties,
            "graph_pool_handle": (0, 1),
        }.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_args, answer=answer: answer)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"stream of {device}")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current_stream)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self, "current_stream", stream))
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
        monkeypatch.setitem(sys.modules, "cupy", self._cupy())

    def _cupy(self) -> Any:
        runtime = SimpleNamespace(
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97, deviceGetAttribute=lambda _attribute, _index: SHARED_BYTES
        )
        driver = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            funcSetAttribute=lambda *args: self.attributes.append(args),
            occupancyMaxActiveBlocksPerMultiprocessor=lambda _function, _threads, _shared: 2,
        )
        stream = SimpleNamespace(from_external=lambda stream: f"CuPy's {stream}")
        function = SimpleNamespace(Module=lambda: Module(self))
        return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, driver=driver, Stream=stream, function=function))


class Module:
    """CuPy's `Module`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def load_file(self, path: str) -> None:
        self._machine.loaded.append(path)

    def get_function(self, lowered: str) -> "Function":
        return Function(self._machine, lowered)


class Function:
    """CuPy's `Function`, with its parameters in their order."""

    def __init__(self, machine: Machine, lowered: str) -> None:
        self._machine = machine
        self.ptr = lowered

    def __call__(  # noqa: PLR0917 - CuPy's signature
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[object],
        shared_mem: int = 0,
        stream: object = None,
        enable_cooperative_groups: bool = False,  # noqa: FBT001, FBT002 - CuPy's
    ) -> None:
        launch = (grid, block, args, shared_mem, stream, enable_cooperative_groups, self._machine.current_stream)
        self._machine.launches.append((self.ptr, launch))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def backend(machine: Machine, tmp_path: Path) -> GpuBackend:  # noqa: ARG001 - it is what the backend finds
    (tmp_path / SOURCE).write_text(TEMPLATE)
    return GpuBackend(0, sources=tmp_path)


pytestmark = pytest.mark.usefixtures("compiler", "cache")


def test_it_knows_the_machine(backend: GpuBackend) -> None:
    assert (backend.architecture, backend.device) == ("sm_89", torch.device("cuda", 0))
    assert (backend.num_multiprocessors, backend.max_shared_bytes) == (4, SHARED_BYTES)


def test_kernels_are_loaded_from_code_for_its_architecture_and_launched_on_its_stream(
    backend: GpuBackend, machine: Machine, cache: Path
) -> None:
    scale, other = backend.kernels(SOURCE, ["scale<float>", "scale<int>"])
    assert [Path(path).parent for path in machine.loaded] == [cache]
    assert "-sm_89-" in machine.loaded[0]
    machine.current_stream = "somebody else's"
    scale((3,), (64,), (None, np.float32(2)), shared_bytes=64)
    other((1, 2), (32,), (np.uint64(5), np.int32(2)))
    ours = "CuPy's stream of cuda:0", False, "stream of cuda:0"
    assert machine.launches == [
        ("_Z5scaleIfEvPT_S0_", ((3, 1, 1), (64, 1, 1), [np.uint64(0), np.float32(2)], 64, *ours)),
        ("_Z5scaleIiEvPT_S0_", ((1, 2, 1), (32, 1, 1), [np.uint64(5), np.int32(2)], 0, *ours)),
    ]
    with pytest.raises(ValueError, match="64 in all"):
        scale((1,), (96,), (None, np.float32(2)))
    with pytest.raises(TypeError, match="int32, the parameter is float32"):
        scale((1,), (64,), (None, np.int32(2)))


def test_much_shared_memory_and_a_cooperative_grid_are_settled_with_the_driver(
    backend: GpuBackend, machine: Machine
) -> None:
    (scale,) = backend.kernels(SOURCE, ["scale<float>"], cooperative=True)
    scale((8,), (64,), (None, np.float32(2)), shared_bytes=64 << 10)
    assert machine.attributes == [("_Z5scaleIfEvPT_S0_", 8, 64 << 10)]
    assert [launch[5] for _name, launch in machine.launches] == [True]
    with pytest.raises(ValueError, match="must all run at once; 8 of"):
        scale((9,), (64,), (None, np.float32(2)))


def test_fp32_products_are_not_rounded_to_tf32(backend: GpuBackend) -> None:
    assert backend.device.type == "cuda"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


def test_closing_gives_the_threads_stream_back(backend: GpuBackend, machine: Machine) -> None:
    backend.kernels(SOURCE, ["scale<float>"])
    backend.close()
    assert machine.current_stream == "default of cuda:0"
