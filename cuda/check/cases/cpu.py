"""Cases of the CPU's compiled kernels: each instruction on arrays, with all threads; see `gpu`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuda.check.cases.case import Array, equal_share, used_share
from cuda.cpu.kernels import sample as cpu_sample
from cuda.cpu.kernels.attention import scratch_bytes
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.pack import Format, Packed, pack
from cuda.cpu.kernels.program import (
    ADD_RMS_NORM,
    ATTENTION,
    EMBED,
    LINEAR,
    ROPE_AND_STORE,
    SAMPLE,
    SILU_MUL,
    SUM_PARTS,
    TAKE_ROWS,
    Program,
)
from cuda.kernels import reference
from cuda.kernels.reference import Draw

HEADS, KV_HEADS, DIM, PAGE_SIZE = 6, 2, 64, 16
VOCAB = 1000
FORMATS: tuple[Format, ...] = ("exact", "bfloat16", "int8", "int4")
DRAWS = (
    Draw(temperature=0),
    Draw(),
    Draw(top_k=40),
    Draw(top_p=0.7),
    Draw(min_p=0.2, temperature=1.5),
    Draw(repetition_penalty=1.5),
    Draw(frequency_penalty=0.7, presence_penalty=-1.5),
)
PROMPT, OUTPUT = [3, 3, 7], [3, 11, 7]


def embed_and_linear(form: Format) -> float:
    """Both read a packed matrix; what it stands for is its product with unit rows."""
    packed = pack(_normal(0, 70, 96), form)
    matrix = _linear(np.eye(96, dtype=np.float32), packed).T
    x = _normal(1, 19, 96)
    product = used_share(_linear(x, packed), reference.linear(x, matrix), 1e-5, 1e-4)
    tokens, slots, positions = np.array([[3, 69, 32]], np.int32), np.zeros(3, np.int32), np.arange(3, dtype=np.int32)
    out = _aligned(np.zeros((3, 96)))
    _run(EMBED, 3, [slots, positions, tokens, 12, *packed.addresses, 96, out, 384, 0, 70])
    return max(product, equal_share(out, matrix[[3, 69, 32]]))


def add_rms_norm() -> float:
    """A residual, the sum of two parts, their norm."""
    residual, first, second, weight = _normal(0, 7, 576), _normal(1, 7, 576), _normal(2, 7, 576), _normal(3, 576)
    left, parts, out = _aligned(residual), [_aligned(first), _aligned(second)], _aligned(np.zeros((7, 576)))
    deltas = np.array([address(part) for part in parts])
    _run(ADD_RMS_NORM, 7, [left, deltas, 2, _aligned(weight), out, 576, 2304, np.array([1e-5])])
    total = residual.astype(np.float64) + first + second
    return max(
        used_share(left, total, 1e-6, 1e-6), used_share(out, reference.rms_norm(total, weight, 1e-5), 1e-5, 1e-6)
    )


def sum_parts() -> float:
    """In their order, in float32."""
    parts = [_aligned(_normal(seed, 5, 96)) for seed in range(3)]
    addresses, out = np.array([address(part) for part in parts]), _aligned(np.zeros((5, 96)))
    _run(SUM_PARTS, 5, [addresses, 3, out, 96, 384])
    return equal_share(out, parts[0] + parts[1] + parts[2])


def silu_mul() -> float:
    """Over the whole range."""
    values = 30 * _normal(0, 5, 2 * 50)
    values[0, 0], values[1, 0], values[2, 0] = -200, 200, 0
    out = _aligned(np.zeros((5, 50)))
    _run(SILU_MUL, 5, [_aligned(values), 400, out, 200, 50])
    return used_share(out, reference.silu_mul(values), 2e-6, 1e-6)


def take_rows() -> float:
    """Exact."""
    x, out = _aligned(_normal(0, 6, 20)), _aligned(np.zeros((3, 20)))
    _run(TAKE_ROWS, 3, [np.array([5, 0, 5], np.int32), x, 80, out, 80, 20])
    return equal_share(out, x[[5, 0, 5]])


def rope_and_store(dtype: str) -> float:
    """Rotated queries; rotated keys, and values, in their pages."""
    count, num_heads = 4, HEADS + 2 * KV_HEADS
    positions, table = np.array([9, 15, 16, 33], np.int32), np.array([[2, 0, 1]], np.int32)
    frequencies = 0.7 ** np.arange(DIM // 2)
    angles = np.arange(40)[:, None] * frequencies
    rotations = _aligned(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    values = _normal(0, count, num_heads, DIM)
    qkv, pool = _aligned(values), _pool(np.zeros((3, 2, KV_HEADS, PAGE_SIZE, DIM), np.float32), dtype)
    slots, eps = np.zeros(count, np.int32), np.array([1e-6])
    arrays = [slots, positions, table, _shape(3, dtype), qkv, num_heads * DIM * 4, pool, rotations, 0, 0, eps]
    _run(ROPE_AND_STORE, count, arrays)
    q, k, v = np.split(values, [HEADS, HEADS + KV_HEADS], axis=1)
    right = np.zeros((3, 2, KV_HEADS, PAGE_SIZE, DIM))
    for token, (page, place) in enumerate(divmod(int(position), PAGE_SIZE) for position in positions):
        right[table[0, page], 0, :, place] = reference.rope(k, positions, frequencies)[token]
        right[table[0, page], 1, :, place] = v[token]
    rounding = 2.0**-8 + 2.0**-14 if dtype == "bfloat16" else 1e-5
    return max(
        used_share(qkv[:, :HEADS], reference.rope(q, positions, frequencies), 1e-5, 1e-5),
        used_share(_unpooled(pool), right, rounding, 1e-5),
    )


def attention(dtype: str) -> float:
    """A chunk of a prompt behind 150 tokens in scattered pages."""
    start, count = 150, 9
    values = _unpooled(_pool(_normal(0, 12, 2, KV_HEADS, PAGE_SIZE, DIM), dtype))
    pages = np.random.default_rng(1).permutation(12)[:10].astype(np.int32)
    queries = _normal(2, count, HEADS, DIM)
    items = np.array([(i, 3, 0, start + i) for i in range(0, count, 3)], np.int32)
    out, width = _aligned(np.zeros((count, HEADS, DIM))), HEADS * DIM * 4
    arrays = [items, pages[None].copy(), _shape(len(pages), dtype), _aligned(queries), width, _pool(values, dtype)]
    _run(ATTENTION, len(items), [*arrays, out, width])
    return used_share(out, reference.paged_attention(queries, values, pages.tolist(), start, None), 1e-4, 2e-6)


def sample() -> float:
    """Every setting's token is the defined one, in the answer and in its slot."""
    count = len(DRAWS)
    tokens = np.array([[*PROMPT, *OUTPUT, 0]] * count, np.int32)
    reals = np.zeros((count, cpu_sample.NUM_REALS))
    integers = np.zeros((count, cpu_sample.NUM_INTEGERS), np.int64)
    for slot, draw in enumerate(DRAWS):
        reals[slot, :6] = (
            draw.temperature, draw.top_p, draw.min_p,
            draw.presence_penalty, draw.frequency_penalty, draw.repetition_penalty,
        )  # fmt: skip
        integers[slot, :5] = draw.top_k, draw.seed, 0, -1, len(PROMPT)
    logits, out = _aligned(2 * _normal(0, count, VOCAB)), aligned_zeros(count, np.int32)
    logprobs, top_logprobs = aligned_zeros(count, np.float32), aligned_zeros((count, 20), np.float32)
    slots, lengths = np.arange(count, dtype=np.int32), np.full(count, 6, np.int32)
    batch = [logits, logits.strides[0], VOCAB, slots, lengths, tokens, tokens.strides[0], reals, integers]
    _run(SAMPLE, count, [*batch, out, logprobs, aligned_zeros((count, 20), np.int32), top_logprobs])
    right = np.array([reference.sample(row, PROMPT, OUTPUT, draw) for row, draw in zip(logits, DRAWS, strict=True)])
    return max(equal_share(out, right), equal_share(tokens[:, 6], right))


CASES: tuple[tuple[str, Callable[[], float]], ...] = (
    *((f"embed, linear {form}", lambda form=form: embed_and_linear(form)) for form in FORMATS),
    ("add_rms_norm float32", add_rms_norm),
    ("sum_parts float32", sum_parts),
    ("silu_mul float32", silu_mul),
    ("take_rows float32", take_rows),
    *((f"rope_and_store {dtype}", lambda dtype=dtype: rope_and_store(dtype)) for dtype in ("float32", "bfloat16")),
    *((f"attention {dtype}", lambda dtype=dtype: attention(dtype)) for dtype in ("float32", "bfloat16")),
    ("sample float32", sample),
)
"""Names, and functions that return the share of its tolerance that the worst number uses."""


def _run(operation: int, rows: int, arguments: Sequence[Any], num_threads: int = 2) -> None:
    """One instruction; arrays among `arguments` are passed as their addresses."""
    count = np.array([rows], np.int64)
    program = Program(num_threads, scratch_bytes(HEADS // KV_HEADS, DIM) + cpu_sample.scratch_bytes(VOCAB))
    values = [address(value) if isinstance(value, np.ndarray) else int(value) for value in arguments]
    program.record(operation, [address(count), *values])
    program.run()
    program.close()


def _linear(x: Array, packed: Packed) -> Array:
    width = packed.num_panels * 32
    out = _aligned(np.zeros((len(x), width)))
    sizes = packed.num_inputs, packed.num_panels
    _run(LINEAR, len(x), [_aligned(x), x.shape[1] * 4, *packed.addresses, *sizes, 0, out, width * 4])
    return out[:, : packed.num_columns]


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _aligned(values: Array, dtype: type[np.generic] = np.float32) -> Array:
    """A copy that starts on a cache line."""
    out = aligned_zeros(values.shape, dtype)
    out[...] = values
    return out


def _shape(max_pages: int, dtype: str) -> Array:
    return np.array([HEADS, KV_HEADS, DIM, PAGE_SIZE, max_pages, 2 if dtype == "bfloat16" else 4, 0], np.int64)


def _pool(values: Array, dtype: str) -> Array:
    """As the device keeps it; bfloat16 by dropping bits."""
    return _aligned(values.view(np.uint32) >> 16, np.uint16) if dtype == "bfloat16" else _aligned(values)


def _unpooled(pool: Array) -> Array:
    return (pool.astype(np.uint32) << 16).view(np.float32) if pool.dtype == np.uint16 else pool
