"""What the processes of a node import, each in a fresh interpreter: the heavy packages only where they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import tiny_model

HEAVY = ("torch", "cupy", "numba", "llvmlite")
EMULATED_WORKER = """
from actors.worker.actor import WorkerActor
from actors.worker.config import WorkerConfig
from actors.worker.devices import open_device
from cuda.devices.device import DeviceConfig
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow

config = DeviceConfig(
    folder=sys.argv[1], num_pages=8, max_running=2, max_model_len=64, max_step_tokens=64, num_threads=1,
    peer_timeout_s=10.0,
)
device = open_device(WorkerConfig(index=0, group="0", device="emu:0", model_name="m", device_config=config))
device.load(lambda _done: None)
start = RowStart(0, 7, 1, [3, 4], 2, SamplingParams(max_tokens=1, seed=0))
assert device.execute(StepPlan(1, 1, [start], [StepRow(0, 0, 2, True, (0,))])).rows
device.close()
"""


def imported(code: str, *arguments: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return set(done.stdout.split())


@pytest.mark.parametrize("actor", ["scheduler", "ingress"])
def test_who_computes_nothing_imports_no_library_for_it(actor: str) -> None:
    assert imported(f"import actors.node.children, actors.{actor}.actor") == set()


@needs_compiler
def test_a_gpu_worker_computes_without_the_compiler_of_cpu_kernels(tmp_path: Path) -> None:
    assert imported(EMULATED_WORKER, str(tiny_model(tmp_path))) == {"torch"}


def test_what_a_worker_of_a_real_gpu_imports_does_not_hold_that_compiler_either() -> None:
    code = "import actors.worker.actor, cuda.gpu.device, cuda.gpu.library_ranks, cuda.gpu.backends.gpu"
    assert imported(code) == {"torch"}
