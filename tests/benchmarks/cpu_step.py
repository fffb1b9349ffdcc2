"""One step of the CPU device beside a bare torch step of the same shapes: same weights, same context.

    python -m tests.benchmarks.cpu_step [--model demo] [--context 150] [--threads 2]

The bare step is what torch does best by hand: fused qkv and gate-up, `x @ wT` in float32, and
scaled_dot_product_attention over contiguous keys and values. Logits are compared first; then both are timed in turns,
and medians and ratios printed.
"""

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: a busy neighbour must not stall its threads

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from cuda.devices.device import DeviceConfig
from cuda.models.checkpoint import LayerWeights, ModelWeights, load_weights
from cuda.models.folder import prepare_model, read_spec
from cuda.models.rope import rope_table
from cuda.models.spec import ModelSpec
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow
from tests.cuda.devices.shown import ShownCpuDevice

FORMS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("float32", "int4"))


@dataclass(frozen=True)
class Work:
    """`rows` rows that each compute `count` tokens behind `context` others."""

    rows: int
    count: int
    context: int

    def __str__(self) -> str:
        return f"decode, {self.rows} rows" if self.count == 1 else f"prefill of {self.count}"


class BareStep:
    """The decoder in plain torch; every tensor the step needs lies ready."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights) -> None:
        self.spec = spec
        self.embedding = weights.embedding.weight
        self.layers = weights.layers
        self.final_norm = weights.final_norm
        self.transposed = [
            [w.weight.t().contiguous() for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
            for layer in self.layers
        ]
        self.lm_head = weights.lm_head.weight.t().contiguous()
        self.table = rope_table(spec, spec.max_model_len)

    def prepare(self, work: Work) -> None:
        """An empty cache for these shapes; call once before steps of the context, too."""
        shape = (work.rows, self.spec.num_kv_heads, work.context + work.count, self.spec.head_dim)
        self.cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]

    def step(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Logits [rows, V] after tokens [rows, count] at positions start …"""
        x = self.embedding[tokens]
        for layer, matrices, cache in zip(self.layers, self.transposed, self.cache, strict=True):
            x = self._layer(x, layer, matrices, cache, start)
        last = functional.rms_norm(x[:, -1], (self.spec.hidden_size,), self.final_norm, self.spec.rms_norm_eps)
        return last @ self.lm_head

    def _layer(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        matrices: list[torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor],
        start: int,
    ) -> torch.Tensor:
        spec = self.spec
        rows, count = x.shape[:2]
        qkv, o, gate_up, down = matrices
        normed = functional.rms_norm(x, (spec.hidden_size,), layer.input_norm, spec.rms_norm_eps)
        heads = (normed.view(rows * count, -1) @ qkv).view(rows, count, -1, spec.head_dim).transpose(1, 2)
        q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        end = start + count
        cosine, sine = self._angles(start, end)
        cache[0][:, :, start:end] = _rotate(k, cosine, sine)
        cache[1][:, :, start:end] = v
        keys, values = cache[0][:, :, :end], cache[1][:, :, :end]
        mask = torch.ones(count, end, dtype=torch.bool).tril(start) if count > 1 else None
        attended = functional.scaled_dot_product_attention(
            _rotate(q, cosine, sine), keys, values, attn_mask=mask, enable_gqa=True
        )
        x = x + (attended.transpose(1, 2).reshape(rows * count, -1) @ o).view(rows, count, -1)
        normed = functional.rms_norm(x, (spec.hidden_size,), layer.post_attention_norm, spec.rms_norm_eps)
        gate, up = (normed.view(rows * count, -1) @ gate_up).chunk(2, dim=-1)
        return x + ((functional.silu(gate) * up) @ down).view(rows, count, -1)

    def _angles(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = self.table[start:end].chunk(2, dim=-1)
        return torch.cat([cosine, cosine], dim=-1), torch.cat([sine, sine], dim=-1)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


class EngineStep:
    """The CPU device with the rows' context computed."""

    def __init__(self, folder: Path, form: tuple[str, str], threads: int, max_rows: int) -> None:
        self.device = ShownCpuDevice(
            DeviceConfig(
                folder=str(folder), dtype=form[0], page_size=16, num_pages=max_rows * 40, kv_memory=None,
                max_running=max_rows, max_model_len=2048, max_step_tokens=2048, quantization=form[1],
                batch_invariant=False, num_threads=threads, peer_timeout_s=10.0,
            )
        )  # fmt: skip
        self.device.load(lambda _done: None)

    def prepare(self, work: Work, tokens: torch.Tensor) -> StepPlan:
        """Compute the context; returns the step to time, which may run any number of times."""
        sampling = SamplingParams(max_tokens=1, temperature=0, seed=0)
        pages = -(-(work.context + work.count) // 16)
        length = work.context + work.count
        starts = [RowStart(row, row, 0, tokens[row].tolist(), length, sampling) for row in range(work.rows)]
        first = [
            StepRow(row, 0, max(1, work.context), samples=False, new_pages=tuple(range(row * pages, (row + 1) * pages)))
            for row in range(work.rows)
        ]
        self.device.execute(StepPlan(0, 0, starts, first))
        rows = [StepRow(row, work.context, work.count, samples=True) for row in range(work.rows)]
        return StepPlan(0, 1, [], rows)


def _median_ms(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Medians of several calls, taken in turns so that a noisy machine is noisy for all."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, taken, strict=True):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return [statistics.median(times) * 1e3 for times in taken]


@torch.inference_mode()
def main() -> None:
    """Print one table row for each shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--context", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = prepare_model(arguments.model)
    spec = read_spec(folder)
    bare = BareStep(spec, load_weights(folder, spec, torch.float32, lambda _done: None))
    engines = {form: EngineStep(folder, form, arguments.threads, 32) for form in FORMS}
    shapes = [Work(rows, 1, arguments.context) for rows in (1, 8, 32)] + [Work(1, 64, 0), Work(1, 512, 0)]
    names = [f"{dtype}{'' if kind == 'none' else ' ' + kind}" for dtype, kind in FORMS]
    print("| step | bare torch ms | " + " | ".join(f"{name} ms (of bare)" for name in names) + " |")
    print("|---|---|" + "---|" * len(names))
    for work in shapes:
        _measure(work, bare, engines, arguments.repeats)
    for engine in engines.values():
        engine.device.close()


def _measure(work: Work, bare: BareStep, engines: dict[tuple[str, str], EngineStep], repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    length = work.context + work.count
    tokens = torch.randint(0, bare.spec.vocab_size, (work.rows, length), generator=generator)
    bare.prepare(work)
    if work.context:
        bare.step(tokens[:, : work.context], 0)
    expected = bare.step(tokens[:, work.context :], work.context).numpy()
    calls: list[Callable[[], object]] = [lambda: bare.step(tokens[:, work.context :], work.context)]
    for form, engine in engines.items():
        plan = engine.prepare(work, tokens)
        engine.device.execute(plan)
        error = np.abs(engine.device.logits - expected).max() / np.ptp(expected)
        if form == FORMS[0] and error > 1e-3:
            raise SystemExit(f"{work}: logits differ by {error:.1e} of their range")
        calls.append(partial(engine.device.execute, plan))
    times = _median_ms(calls, repeats)
    print(
        f"| {work} | {times[0]:.1f} | " + " | ".join(f"{ms:.1f} ({ms / times[0]:.2f})" for ms in times[1:]) + " |",
        flush=True,
    )


if __name__ == "__main__":
    main()
