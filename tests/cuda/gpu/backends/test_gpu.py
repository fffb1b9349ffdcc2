import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cuda.gpu.backends import gpu
from cuda.gpu.backends.gpu import GpuBackend, architecture_for, by_value, check_gpu
from cuda.gpu.backends.nvrtc import MissingPart

H200 = (9, 0)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if torch had CUDA and saw an H200, and CuPy and NVRTC were there."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: H200)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "H200")
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setattr(gpu, "find_compiler", lambda: None)
    return monkeypatch


def complaint(index: int = 0) -> str:
    with pytest.raises(MissingPart) as caught:
        check_gpu(index)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("one_gpu")
def test_nothing_is_said_when_all_is_there() -> None:
    check_gpu(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_backend_without_a_gpu_says_in_one_line_what_is_missing() -> None:
    with pytest.raises(MissingPart, match=r"^cuda:0: torch .*") as caught:
        GpuBackend(0)
    assert "\n" not in str(caught.value)


def test_a_torch_without_cuda_is_named(one_gpu: pytest.MonkeyPatch) -> None:
    one_gpu.setattr(torch.version, "cuda", None)
    assert f"torch {torch.__version__} is built without CUDA; run `pip install" in complaint()


def test_a_machine_without_gpu_or_driver_is_told_what_must_see_one(one_gpu: pytest.MonkeyPatch) -> None:
    one_gpu.setattr(torch.cuda, "is_available", lambda: False)
    assert "no NVIDIA GPU; `nvidia-smi` must list it, with a driver for CUDA 13.0" in complaint()


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("index", [-1, 1])
def test_an_index_out_of_range_is_told_how_many_there_are(index: int) -> None:
    assert complaint(index) == f"cuda:{index}: there is no such GPU; torch sees 1, counted from cuda:0"


def test_a_missing_cupy_is_named(one_gpu: pytest.MonkeyPatch) -> None:
    one_gpu.setitem(sys.modules, "cupy", None)
    assert "launched by CuPy, which cannot be imported (import of cupy halted" in complaint()
    assert complaint().endswith("run `pip install 'tokenstage[cuda]'`")


def test_a_missing_compiler_is_named(one_gpu: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingPart("NVRTC is not installed")

    one_gpu.setattr(gpu, "find_compiler", missing)
    assert complaint() == "NVRTC is not installed"


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_100"),
    ],
)
def test_a_gpu_runs_the_nearest_older_code_of_its_own_generation(
    capability: tuple[int, int], architecture: str
) -> None:
    assert architecture_for(capability, "a GPU") == architecture


@pytest.mark.parametrize("capability", [(7, 5), (11, 0), (12, 0)])
def test_a_generation_without_kernels_is_refused(capability: tuple[int, int]) -> None:
    expected = (
        f"Quadro has compute capability {capability[0]}.{capability[1]}; the kernels are made for 8.0, 8.9, 9.0, 10.0"
    )
    with pytest.raises(MissingPart, match=f"^{expected}$"):
        architecture_for(capability, "Quadro")


def test_a_structure_is_passed_as_cupy_takes_it_an_array_of_one_element() -> None:
    structure = np.array([(7, 8)], np.dtype([("address", np.uint64), ("count", np.int32)]))[0]
    value = by_value(structure)
    assert isinstance(value, np.ndarray)
    assert (value.size, value.tobytes()) == (1, structure.tobytes())
    assert by_value(np.int32(3)) == np.int32(3)
