"""What a device's check finds: all right in check mode, and bugs planted in each kernel, one of them at a time."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda.check import device
from cuda.check.cases import cpu as cpu_cases
from cuda.check.cases.case import FLOAT, HALF
from cuda.check.cases.gpu import CASES, SMALL
from cuda.check.device import check_kernels
from cuda.check.findings import Begun, Finding
from cuda.check.speed import ceiling_of
from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.backends.nvrtc import MissingPart
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.kernels.mutants import Mutant, plant

BUGS = {
    "embed": Mutant("gather.cu", "token < num_tokens", "token < num_tokens - 1"),
    "take_rows": Mutant("gather.cu", "index < num_rows", "index < num_rows - 1"),
    "scatter": Mutant("gather.cu", "updates[first + 2]", "updates[first + 1]"),
    "add_rms_norm": Mutant("norm_row.cuh", "rsqrtf(", "2.0f * rsqrtf("),
    "gated_activation": Mutant("activation.cu", "(row * 2 + 1)", "(row * 2)"),
    "gemm": Mutant("gemm.cu", "(depth + step - 1) / step", "depth / step"),
    "rope_and_store": Mutant("rope_and_store.cu", "-__fmul_rn", "__fmul_rn"),
}


@needs_compiler
def test_all_kernels_are_right_in_check_mode() -> None:
    said: list[Any] = []
    check_kernels(said.append, EmulatedBackend(Settings(mode="check")))
    findings = [one for one in said if isinstance(one, Finding)]
    assert [one.outcome for one in findings] == ["ok"] * sum(len(case.dtypes) for case in CASES)
    assert [one.subject for one in findings] == [one.subject for one in said if isinstance(one, Begun)]


@needs_compiler
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_planted_in_a_kernel_is_found_by_its_case(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    backend = EmulatedBackend(sources=plant(BUGS[name]))
    assert case.run(backend, case.dtypes[-1], SMALL) > 1


@needs_compiler
def test_a_kernel_that_raises_is_a_finding_and_the_next_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("illegal address\nand more")

    monkeypatch.setattr("cuda.check.device.CASES", (type(CASES[0])("broken", broken), CASES[2]))
    said: list[Any] = []
    check_kernels(said.append, EmulatedBackend())
    first, second, third = (one for one in said if isinstance(one, Finding))
    assert (first.outcome, first.measured) == (second.outcome, second.measured)
    assert (first.outcome, first.measured) == ("FAILED", "RuntimeError: illegal address")
    assert third.outcome == "ok"


def test_a_wrong_definition_shows_in_a_cpu_case(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_cases.silu_mul() <= 1
    monkeypatch.setattr("cuda.kernels.reference.silu_mul", lambda x: np.zeros((5, 50)) + x.mean())
    assert cpu_cases.silu_mul() > 1


def test_gpus_are_known_by_their_drivers_names() -> None:
    h200, unknown = ceiling_of("NVIDIA H200"), ceiling_of("NVIDIA GeForce RTX 4090")
    assert h200 is not None
    assert h200.bandwidth == 4.8e12
    assert unknown is None
    assert ceiling_of("NVIDIA H100 PCIe") != ceiling_of("NVIDIA H100 80GB HBM3")


@needs_compiler
def test_a_gpus_check_describes_and_measures_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(name="NVIDIA H200", total_memory=141 << 30, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr("cuda.gpu.backends.gpu.GpuBackend", lambda _index: EmulatedBackend())
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _index: h200)
    monkeypatch.setattr(device, "gpu_software", lambda: {"driver": "580.1", "CUDA": "13.0"})
    monkeypatch.setattr(device, "COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(device, "GEMM_SIZE", {FLOAT: 32, HALF: 32})
    said: list[Any] = []
    device.check_device(said.append, "cuda:0")
    found = {one.subject: one for one in said if isinstance(one, Finding)}
    assert "FAILED" not in {one.outcome for one in found.values()}
    assert "compute capability 9.0, 132 SMs" in found["NVIDIA H200"].measured
    assert found["software"].measured == "driver 580.1, CUDA 13.0"
    assert found["copy bandwidth"].limit.endswith("% of the advertised 4,800")
    assert found["library's GEMM speed bfloat16"].limit.endswith("% of the advertised 989,000")


def test_versions_are_told_of_what_is_installed() -> None:
    try:
        software = device.gpu_software()
    except MissingPart as missing:
        pytest.skip(str(missing))
    assert software["torch"].startswith("2.")
    assert set(software) == {"driver", "CUDA", "torch", "CuPy", "NVRTC"}
