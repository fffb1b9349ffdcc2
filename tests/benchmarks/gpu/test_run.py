"""The GPU benchmark runs, all of it, in the emulator: the first GPU that it meets shall find no mistyped line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from tests.benchmarks.gpu import all_reduce, run, steps
from tests.benchmarks.gpu import figures as gpu_figures
from tests.benchmarks.gpu.all_reduce import measure_all_reduce
from tests.benchmarks.gpu.figures import Bench, Ceilings, Scale
from tests.benchmarks.gpu.kernels import measure_attention, measure_linears, measure_rows, measure_sampler
from tests.benchmarks.gpu.run import Measure
from tests.benchmarks.gpu.steps import measure_steps
from tests.cuda.kernels.combinations import needs_compiler

pytestmark = needs_compiler

CEILINGS = Ceilings(1e9, {"bfloat16": 1e10, "float32": 1e10})
SMALL = Scale.small("emu:0")


@pytest.mark.parametrize(
    "measure", [measure_rows, measure_linears, measure_attention, measure_sampler, measure_steps, measure_all_reduce]
)
def test_every_measurement_gives_its_figures(measure: Measure) -> None:
    figures: list[dict[str, Any]] = []
    measure(figures.append, SMALL, CEILINGS)
    assert len(figures) >= 2
    assert len({figure["what"] for figure in figures}) == len(figures)
    for figure in figures:
        assert "error" not in figure
        assert figure.get("us", 1) > 0
    json.dumps(figures)


def test_a_figure_is_beside_the_larger_of_both_floors() -> None:
    memory = CEILINGS.figure("copy", 2.0, num_bytes=1e9, flops=1e9)
    assert (memory["GB/s"], memory["of_limit"]) == (0.5, 0.5)
    assert CEILINGS.figure("product", 4.0, num_bytes=1, flops=2e10)["of_limit"] == 0.5


def test_a_kernel_that_fails_is_a_figure_with_its_error() -> None:
    figures: list[dict[str, Any]] = []

    def broken() -> Any:
        raise ValueError("no such shape")

    Bench(SMALL.open(), SMALL, CEILINGS, figures.append).measure("broken", broken, 1)
    assert figures == [{"what": "broken", "error": "ValueError: no such shape"}]


def failing(report: Any, _scale: Scale, _ceilings: Ceilings) -> None:
    report({"what": "half"})
    raise ValueError("the other half")


def test_an_item_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "measure_rows", failing)
    out = tmp_path / "results" / "emulated.json"
    code = run.main(["--out", str(out), "--backend", "emu", "--small", "--only", "rows", "sampler"])
    written = json.loads(out.read_text())
    assert code == 1
    assert written["items"]["rows"]["error"] == "ValueError: the other half"
    assert written["items"]["rows"]["figures"] == [{"what": "half"}]
    assert written["items"]["sampler"]["ok"]
    assert written["ceilings_measured"]
    assert written["machine"]["ok"]
    assert written["commit"]


def test_the_lines_that_only_a_gpu_reaches_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(name="NVIDIA H200", total_memory=141 << 30, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(gpu_figures, "GpuBackend", lambda number: EmulatedBackend(Settings(device=number)))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _index: h200)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("cuda.check.device.gpu_software", lambda: {"driver": "580.1"})
    monkeypatch.setattr(all_reduce, "ROWS", (1, 2))
    monkeypatch.setattr(all_reduce, "CALLS", 2)
    monkeypatch.setattr(all_reduce, "_nccl_seconds", lambda *_: 1e-3)
    monkeypatch.setattr(steps, "HEADROOM_BYTES", 1 << 20)
    scale = Scale.small("cuda:0")
    figures: list[dict[str, Any]] = []
    run.describe_machine(figures.append, scale)
    assert figures[0]["device"] == "NVIDIA H200"
    for measure in (measure_steps, measure_all_reduce):
        measure(figures.append, scale, CEILINGS)
    assert figures[-1]["nccl_us"] == 1000
    assert "3 ranks" in figures[-1]["what"]
    assert not [figure for figure in figures if "error" in figure]
