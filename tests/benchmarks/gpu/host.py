"""What the gpu device's host side costs a decode step: everything but the work on the GPU, whose backend does nothing.

    python -m tests.benchmarks.gpu.host [--contexts 100 2000] [--rows 1 8 64 256]

Prints microseconds for the submission (work list, arrays, launches) and for the answer, of a model with 32 query and 8
KV heads.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cuda.gpu.device import GpuDevice
from cuda.kernels.backend import Launch
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow
from tests.cuda.devices.driver import config_for
from tests.cuda.models.tiny import tiny_model

STEPS = 300
PAGE_SIZE = 16
SAMPLING = SamplingParams(max_tokens=1, seed=0)


class Nothing:
    """An event that has happened, and a graph that queues nothing."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def launch(self) -> None: ...


class IdleBackend:
    """A GPU like an H200, on which nothing is ever done."""

    device = torch.device("cpu")
    num_multiprocessors = 132
    max_shared_bytes = 227 << 10

    def kernels(self, source: str, names: Sequence[str], *, cooperative: bool = False) -> tuple[Launch, ...]:
        del source, cooperative
        return tuple(lambda *_arguments, **_options: None for _ in names)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    zeros = pinned = empty

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def matmul(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None: ...

    def record(self) -> Nothing:
        return Nothing()

    def capture(self, run: Callable[[], Any]) -> Nothing:
        del run
        return Nothing()

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int:
        return 1 << 30

    def close(self) -> None: ...


def measure(device: GpuDevice, num_rows: int, context: int) -> tuple[float, float]:
    """Median seconds of a decode step's submission and of its answer."""
    num_pages = -(-(context + STEPS) // PAGE_SIZE)
    starts = [RowStart(slot, slot, 0, [1] * context, context, SAMPLING) for slot in range(num_rows)]
    pages = tuple(range(num_pages))
    device.execute(StepPlan(0, 0, starts, [StepRow(slot, 0, context, True, pages) for slot in range(num_rows)]))
    submitted, answered = [], []
    for step in range(STEPS):
        plan = StepPlan(0, step, [], [StepRow(slot, context + step, 1, samples=True) for slot in range(num_rows)])
        begin = time.perf_counter()
        device.submit(plan)
        middle = time.perf_counter()
        assert len(device.wait().rows) == num_rows
        submitted.append(middle - begin)
        answered.append(time.perf_counter() - middle)
    return statistics.median(submitted), statistics.median(answered)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 2000])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        heads: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
        model = tiny_model(Path(folder), "llama", max_position_embeddings=8192, **heads)
        max_model_len = max(arguments.contexts) + STEPS + 1
        config = config_for(
            model, max_running=max(arguments.rows), max_model_len=max_model_len, max_step_tokens=2048, num_pages=1024
        )
        backend: Any = IdleBackend()  # as much of one as the device asks for
        device = GpuDevice(config, backend)
        device.load(lambda _done: None)
        print(f"{'context':>8} {'rows':>5} {'submit µs':>10} {'answer µs':>10}")
        for context in arguments.contexts:
            for num_rows in arguments.rows:
                submit_s, answer_s = measure(device, num_rows, context)
                print(f"{context:8} {num_rows:5} {1e6 * submit_s:10.0f} {1e6 * answer_s:10.0f}")
        device.close()


if __name__ == "__main__":
    main()
