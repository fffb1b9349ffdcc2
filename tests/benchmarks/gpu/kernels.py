"""Each kernel at the shapes of a step, in bfloat16, beside its roofline on this machine."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from cuda.kernels.activation import GatedActivation
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.attention import AttentionShape, PagedAttention
from cuda.kernels.gather import Gather
from cuda.kernels.gemm import Gemm
from cuda.kernels.gemv import MAX_ROWS, Gemv
from cuda.kernels.rope_and_store import RopeAndStore
from cuda.kernels.sample import MAX_ALTERNATIVES, Sampler, SlotSettings
from tests.benchmarks.gpu.figures import Bench, Ceilings, Report, Scale

HALF = torch.bfloat16
PAGE_SIZE = 16
ATTENTION_BAR, ATTENTION_BAR_BYTES = 0.8, 100e6
GEMV_BAR = 0.85
SAMPLINGS = {
    "greedy": SlotSettings(temperature=0),
    "draw": SlotSettings(),
    "top-k 50, top-p 0.9": SlotSettings(top_k=50, top_p=0.9),
}
Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None]


def measure_rows(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """What works on single rows: gather, norm, activation, positions."""
    bench = Bench(scale.open(), scale, ceilings, report)
    columns, features = scale.columns, scale.features
    gather, norm = Gather(bench.backend, HALF, columns), AddRmsNorm(bench.backend, HALF, columns, 1e-5)
    activation = GatedActivation(bench.backend, HALF, "silu", features)
    for rows in (*scale.rows, scale.chunk):
        order, weight = bench.ints(range(rows)), bench.normal(columns)

        def take(rows: int = rows, order: torch.Tensor = order) -> Callable[[], object]:
            return partial(gather.take_rows, bench.normal(rows, columns), bench.normal(rows, columns), order)

        def add(rows: int = rows, weight: torch.Tensor = weight) -> Callable[[], object]:
            out, residual, delta = (bench.normal(rows, columns) for _ in range(3))
            return partial(norm, out, residual, delta, weight)

        def gate(rows: int = rows) -> Callable[[], object]:
            return partial(activation, bench.normal(rows, features), bench.normal(rows, 2 * features))

        bench.measure(f"take_rows, {rows} rows", take, 4 * rows * columns)
        bench.measure(f"add_rms_norm, {rows} rows", add, 8 * rows * columns)
        bench.measure(f"silu_mul, {rows} rows", gate, 6 * rows * features)
        _measure_rope(bench, rows)


def _measure_rope(bench: Bench, rows: int) -> None:
    scale = bench.scale
    shape = AttentionShape(scale.heads, scale.kv_heads, scale.head_dim, PAGE_SIZE)
    kernel = RopeAndStore(bench.backend, HALF, shape, 1e-5)
    num_pages = -(-rows // PAGE_SIZE)
    lists = bench.ints([range(num_pages)]), bench.ints([0] * rows), bench.ints(range(rows))
    table = bench.normal(rows, scale.head_dim, dtype=torch.float32)
    width = (scale.heads + 2 * scale.kv_heads) * scale.head_dim

    def make() -> Callable[[], object]:
        pool = bench.normal(num_pages, 2, scale.kv_heads, PAGE_SIZE, scale.head_dim)
        return partial(kernel, bench.normal(rows, width), pool, *lists, table, None, None)

    bench.measure(f"rope_and_store, {rows} rows", make, rows * (4 * width + 4 * scale.head_dim))


def measure_linears(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """The products of a layer, by our GEMV, our GEMM and the library."""
    bench = Bench(scale.open(), scale, ceilings, report)
    columns, features = scale.columns, scale.features
    qkv = (scale.heads + 2 * scale.kv_heads) * scale.head_dim
    shapes = {"qkv": (qkv, columns), "gate_up": (2 * features, columns), "down": (columns, features)}
    kernels: dict[str, Linear] = {
        "gemv": Gemv(bench.backend, HALF, HALF),
        "gemm": Gemm(bench.backend, HALF),
        "library": bench.backend.matmul,
    }
    for name, (outputs, depth) in shapes.items():
        for rows in (*scale.rows, scale.chunk):
            for kernel, linear in kernels.items():
                if kernel == "gemv" and rows > MAX_ROWS:
                    continue

                def make(
                    rows: int = rows, outputs: int = outputs, depth: int = depth, linear: Linear = linear
                ) -> Callable[[], object]:
                    return partial(
                        linear,
                        bench.normal(rows, outputs),
                        bench.normal(rows, depth),
                        bench.normal(outputs, depth),
                        None,
                    )

                num_bytes = 2 * (outputs * depth + rows * (outputs + depth))
                more = {"bar": GEMV_BAR} if kernel == "gemv" else {}
                bench.measure(f"{kernel} {name}, {rows} rows", make, num_bytes, 2.0 * rows * outputs * depth, **more)


def measure_attention(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """Decode rows beside the bytes of their keys and values, and a chunk of a prompt beside its operations."""
    bench = Bench(scale.open(), scale, ceilings, report)
    for context in scale.contexts:
        for rows in scale.rows:
            _measure_attention(
                bench, f"decode, {rows} rows of {context}", [(row, context - 1, 1) for row in range(rows)]
            )
    chunk = scale.chunk
    _measure_attention(bench, f"a prompt of {chunk}", [(0, 0, chunk)])
    _measure_attention(bench, f"a chunk of {chunk} behind {chunk}", [(0, chunk, chunk)])


def _measure_attention(bench: Bench, what: str, segments: list[tuple[int, int, int]]) -> None:
    scale, backend = bench.scale, bench.backend
    heads, kv_heads, dim = scale.heads, scale.kv_heads, scale.head_dim
    kernel = PagedAttention(backend, HALF, AttentionShape(heads, kv_heads, dim, PAGE_SIZE))
    items, num_items = (bench.ints(each) for each in kernel.planner.work_items(*zip(*segments, strict=True)))
    pages_each = -(-max(start + count for _, start, count in segments) // PAGE_SIZE)
    order = np.random.default_rng(0).permutation(len(segments) * pages_each).reshape(len(segments), -1)
    tables = bench.ints(order.astype(np.int32))
    slots = bench.ints([slot for slot, _, count in segments for _ in range(count)])
    num_tokens = slots.shape[0]

    def make() -> Callable[[], object]:
        pool = bench.normal(order.size, 2, kv_heads, PAGE_SIZE, dim)
        qkv = bench.normal(num_tokens, (heads + 2 * kv_heads) * dim)
        out = backend.empty((num_tokens, heads * dim), HALF)
        return partial(kernel, out, qkv, pool, tables, slots, items, num_items)

    num_keys = sum(start + count for _, start, count in segments)
    num_pairs = sum(count * start + count * (count + 1) // 2 for _, start, count in segments)
    num_bytes = 4 * num_keys * kv_heads * dim + 4 * num_tokens * heads * dim
    more = {"bar": ATTENTION_BAR} if num_bytes >= ATTENTION_BAR_BYTES else {}
    bench.measure(f"attention, {what}", make, num_bytes, 4.0 * num_pairs * heads * dim, **more)


def measure_sampler(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """Beside one reading of the logits."""
    bench = Bench(scale.open(), scale, ceilings, report)
    for rows in scale.rows:
        for name, settings in SAMPLINGS.items():
            sampler = Sampler(bench.backend, scale.vocab, rows)
            for slot in range(rows):
                sampler.tables.start(slot, settings)
            lists = bench.ints(range(rows)), bench.ints([8] * rows), bench.ints([[0] * 16] * rows)
            answers = bench.ints([0] * rows), bench.normal(rows, dtype=torch.float32)
            tops = (
                bench.ints([[0] * MAX_ALTERNATIVES] * rows),
                bench.normal(rows, MAX_ALTERNATIVES, dtype=torch.float32),
            )

            def make(rows: int = rows, sampler: Sampler = sampler, arrays: tuple[torch.Tensor, ...] = (
                *lists, *answers, *tops
            )) -> Callable[[], object]:  # fmt: skip
                return partial(sampler, bench.normal(rows, scale.vocab, dtype=torch.float32), *arrays)

            bench.measure(f"sample, {rows} rows, {name}", make, 4 * rows * scale.vocab)
