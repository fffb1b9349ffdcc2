"""Decode steps of a synthetic Llama on one GPU, beside the time that reading its weights and its KV once takes.

The model's weights are drawn on the device; everything else is the engine's own device, plans and graphs.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from cuda.devices.device import DeviceConfig
from cuda.gpu.batch import padded_rows
from cuda.gpu.device import GpuDevice
from cuda.models.checkpoint import LayerWeights, LinearWeight, ModelWeights
from cuda.models.spec import ModelSpec
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow
from tests.benchmarks.gpu.figures import Ceilings, Report, Scale

PAGE_SIZE = 16
HEADROOM_BYTES = 6 << 30
"""Of buffers and of the library."""
WARM_STEPS = 4
STEP_BAR, IDLE_BAR = round(1 / 1.18, 4), 0.01


def measure_steps(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """Step time captured and eager, the device's idle share between steps, and graphs launched back to back."""
    context = scale.contexts[0]
    backend = scale.open()
    num_layers = _fitting_layers(scale, context, backend.free_bytes())
    max_rows, max_len = max(scale.rows), context + 4 * (scale.steps + WARM_STEPS + 2)
    num_pages = max_rows * -(-max_len // PAGE_SIZE)
    with TemporaryDirectory() as folder:
        _write_config(Path(folder), scale, num_layers)
        config = DeviceConfig(
            folder=folder, dtype="bfloat16", page_size=PAGE_SIZE, num_pages=num_pages, kv_memory=None,
            max_running=max_rows, max_model_len=max_len, max_step_tokens=max_rows, quantization="none",
            batch_invariant=False, num_threads=1, peer_timeout_s=10.0,
        )  # fmt: skip
        device = GpuDevice(config, backend)
        with patch("cuda.gpu.loading.load_weights", _Drawn(backend.device)):
            began = time.perf_counter()
            pool = device.load(lambda _: None)
        report({"what": f"load of {num_layers} layers drawn on the device", "seconds": time.perf_counter() - began})
    read_bytes = pool.weights_bytes - 2 * scale.vocab * scale.columns  # of the embedding, a row a token is read
    kv_bytes = 4 * num_layers * scale.kv_heads * scale.head_dim * context
    for rows in scale.rows:
        floor_s = (read_bytes + rows * kv_bytes) / ceilings.bandwidth
        _measure(report, _Decoder(device, rows, context, max_len, backend), scale.steps, floor_s)
    device.close()


def _measure(report: Report, decoder: "_Decoder", num_steps: int, floor_s: float) -> None:
    def figure(what: str, seconds: float, **more: float) -> None:
        ratio = round(floor_s / seconds, 4)
        report({"what": f"{what}, {decoder.rows} rows", "us": round(seconds * 1e6, 1), "of_limit": ratio, **more})

    decoder.run(WARM_STEPS)
    seconds, idle_s = decoder.run(num_steps)
    figure("step, pipelined", seconds, bar=STEP_BAR, idle_share=round(idle_s / seconds, 5), idle_bar=IDLE_BAR)
    replay_s = decoder.replay_seconds(num_steps)
    figure("step, graphs back to back", replay_s, host_gap_share=round(1 - replay_s / seconds, 4))
    with decoder.eager():
        decoder.run(WARM_STEPS)
        figure("step, eager", decoder.run(num_steps)[0])


class _Decoder:
    """`rows` requests with `context` tokens behind each, one more with every step."""

    def __init__(self, device: GpuDevice, rows: int, context: int, max_len: int, backend: Any) -> None:
        self.rows = rows
        self._device = device
        self._backend = backend
        self._position = context - 1
        self._step = 0
        sampling = SamplingParams(max_tokens=max_len, temperature=0, seed=0)
        tokens = [5] * context
        self._starts = [RowStart(slot, slot, 0, tokens, context, sampling) for slot in range(rows)]
        pages = -(-max_len // PAGE_SIZE)
        self._pages = [tuple(range(slot * pages, (slot + 1) * pages)) for slot in range(rows)]
        for layer_pool in device._running.runner._state.pools:
            layer_pool.normal_()  # what a prompt would have left there

    def run(self, num_steps: int) -> tuple[float, float]:
        """Seconds of a step, and how long of it the device had nothing to do; the next step is always queued."""
        idle_s = self._submit()
        began = time.perf_counter()
        for _ in range(num_steps - 1):
            idle_s += self._submit()
            self._device.wait()
        self._device.wait()
        return (time.perf_counter() - began) / num_steps, idle_s / num_steps

    def replay_seconds(self, num_steps: int) -> float:
        """Of the latest step's graph, launched again and again: what the host does is not in it."""
        graph = self._device._running.runner._graphs[padded_rows(self.rows, self._device._config.max_running)]
        graph.launch()
        self._backend.synchronize()
        began = time.perf_counter()
        for _ in range(num_steps):
            graph.launch()
        self._backend.synchronize()
        return (time.perf_counter() - began) / num_steps

    def eager(self) -> Any:
        """Within, passes are queued kernel by kernel."""
        return patch.object(self._device._running.runner, "_graphs", {})

    def _submit(self) -> float:
        rows = [
            StepRow(slot, self._position, 1, samples=True, new_pages=self._pages[slot] if self._starts else ())
            for slot in range(self.rows)
        ]
        plan = StepPlan(1, self._step, self._starts, rows)
        self._starts, self._step, self._position = [], self._step + 1, self._position + 1
        return self._device.submit(plan)


class _Drawn:
    """In the place of `load_weights`: random weights of the right shapes, made where they shall lie."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self,
        _folder: Path,
        spec: ModelSpec,
        dtype: torch.dtype,
        progress: object,
        place: Callable[..., Any],
        **_: object,
    ) -> ModelWeights:
        del progress

        def draw(*shape: int) -> Any:
            return place(torch.randn(shape, device=self._device, dtype=dtype) * 0.02)

        columns, dim = spec.hidden_size, spec.head_dim
        qkv = (spec.num_heads + 2 * spec.num_kv_heads) * dim
        layers = [
            LayerWeights(
                input_norm=draw(columns),
                qkv=LinearWeight(draw(qkv, columns)),
                q_norm=None,
                k_norm=None,
                o=LinearWeight(draw(columns, spec.num_heads * dim)),
                post_attention_norm=draw(columns),
                gate_up=LinearWeight(draw(2 * spec.intermediate_size, columns)),
                down=LinearWeight(draw(columns, spec.intermediate_size)),
            )
            for _ in range(spec.num_layers)
        ]
        embedding, head = draw(spec.vocab_size, columns), draw(spec.vocab_size, columns)
        return ModelWeights(LinearWeight(embedding), layers, draw(columns), LinearWeight(head))


def _fitting_layers(scale: Scale, context: int, free_bytes: int) -> int:
    """As many as there is memory for beside the rest."""
    qkv = (scale.heads + 2 * scale.kv_heads) * scale.head_dim
    weights = scale.columns * (qkv + scale.heads * scale.head_dim + 3 * scale.features)
    kv = 2 * max(scale.rows) * (context + 8 * scale.steps) * scale.kv_heads * scale.head_dim
    room = free_bytes - 4 * scale.vocab * scale.columns - (HEADROOM_BYTES if scale.is_gpu else 0)
    fitting = min(scale.layers, room // (2 * (weights + kv)))
    if fitting < 1:
        raise ValueError(f"{free_bytes >> 20} MiB are free: not enough for one layer")
    return fitting


def _write_config(folder: Path, scale: Scale, num_layers: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": scale.columns,
        "intermediate_size": scale.features, "num_attention_heads": scale.heads,
        "num_key_value_heads": scale.kv_heads, "head_dim": scale.head_dim, "num_hidden_layers": num_layers,
        "vocab_size": scale.vocab, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    folder.joinpath("config.json").write_text(json.dumps(config), encoding="utf-8")
