"""Rotary positions, the write into pages, and paged attention against the reference; chunks that leave bits alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuda.cpu.kernels.attention import MAX_QUERIES
from cuda.cpu.kernels.program import ATTENTION, ROPE_AND_STORE
from cuda.kernels import reference
from tests.cuda.kernels.runner import aligned, run_op


@dataclass(frozen=True)
class Shape:
    heads: int = 6
    kv_heads: int = 2
    dim: int = 64
    page_size: int = 16
    window: int = 0
    bfloat16: bool = False

    def numbers(self, max_pages: int) -> Any:
        fixed = [self.heads, self.kv_heads, self.dim, self.page_size, max_pages]
        return np.array([*fixed, 2 if self.bfloat16 else 4, self.window], np.int64)


SHAPES = [
    Shape(),
    Shape(page_size=1),
    Shape(page_size=7, window=20),
    Shape(window=100),
    Shape(heads=4, kv_heads=4, dim=8, page_size=3),
    Shape(heads=8, kv_heads=1, dim=40),
    Shape(heads=2, kv_heads=2, dim=128, bfloat16=True),
    Shape(heads=300, kv_heads=1, dim=16),
]


class Row:
    """One row of `length` tokens with random keys and values in scattered pages."""

    def __init__(self, shape: Shape, length: int) -> None:
        random = np.random.default_rng(length)
        self.shape = shape
        num_pages = -(-length // shape.page_size)
        values = random.normal(size=(num_pages + 2, 2, shape.kv_heads, shape.page_size, shape.dim)).astype(np.float32)
        if shape.bfloat16:
            values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        self.values = values
        self.pool = aligned(values.view(np.uint32) >> 16, np.uint16) if shape.bfloat16 else aligned(values)
        self.pages = random.permutation(num_pages + 2)[:num_pages].astype(np.int32)
        self.queries = random.normal(size=(length, shape.heads, shape.dim)).astype(np.float32)

    def attend(self, start: int, count: int) -> Any:
        shape, width = self.shape, self.shape.heads * self.shape.dim
        table = np.stack([np.zeros_like(self.pages), self.pages])
        step = max(1, MAX_QUERIES // (shape.heads // shape.kv_heads))
        items = [(i, min(step, count - i), 1, start + i) for i in range(0, count, step)]
        q, out = aligned(self.queries[start : start + count]), aligned(np.zeros((count, width)))
        arguments = [
            np.array(items, np.int32),
            table,
            shape.numbers(len(self.pages)),
            q,
            width * 4,
            self.pool,
            out,
            width * 4,
        ]
        run_op(ATTENTION, len(items), arguments)
        return out.reshape(count, shape.heads, shape.dim)

    def expected(self, start: int, count: int) -> Any:
        queries = self.queries[start : start + count]
        return reference.paged_attention(queries, self.values, self.pages.tolist(), start, self.shape.window or None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 5), (63, 1), (64, 3), (150, 70), (199, 1)])
def test_attention_is_the_softmax_over_the_pages(shape: Shape, start: int, count: int) -> None:
    row = Row(shape, start + count)
    np.testing.assert_allclose(row.attend(start, count), row.expected(start, count), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_query_is_the_same_bits_in_any_chunk(shape: Shape) -> None:
    row = Row(shape, 170)
    whole = row.attend(0, 170)
    for start, count in ((0, 33), (100, 70), (169, 1)):
        np.testing.assert_array_equal(row.attend(start, count), whole[start : start + count])


@pytest.mark.parametrize("shape", [Shape(), Shape(page_size=5, dim=8), Shape(bfloat16=True)])
@pytest.mark.parametrize("qk_norm", ["none", "normed"])
def test_rope_rotates_queries_and_stores_keys_and_values(shape: Shape, qk_norm: str) -> None:
    random = np.random.default_rng(3)
    count, heads = 4, shape.heads + 2 * shape.kv_heads
    positions, table = np.array([9, 10, 11, 12], np.int32), np.array([[2, 0, 1]], np.int32)
    frequencies = 0.7 ** np.arange(shape.dim // 2)
    angles = np.arange(20)[:, None] * frequencies
    rotations = aligned(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    values = random.normal(size=(count, heads, shape.dim)).astype(np.float32)
    norms: list[Any] = [aligned(random.uniform(0.5, 2, shape.dim)) for _ in range(2)] if qk_norm == "normed" else []
    qkv, width = aligned(values), heads * shape.dim * 4
    pool_type = np.uint16 if shape.bfloat16 else np.float32
    pool = aligned(np.zeros((3, 2, shape.kv_heads, shape.page_size, shape.dim)), pool_type)
    run_op(
        ROPE_AND_STORE,
        count,
        [
            np.zeros(count, np.int32),
            positions,
            table,
            shape.numbers(3),
            qkv,
            width,
            pool,
            rotations,
            *(norms or [0, 0]),
            np.array([1e-6]),
        ],
    )
    queries, keys, stored = np.split(values, [shape.heads, shape.heads + shape.kv_heads], axis=1)
    if norms:
        queries, keys = (reference.rms_norm(x, norm, 1e-6) for x, norm in zip((queries, keys), norms, strict=True))
    rotated = reference.rope(keys, positions, frequencies)
    found = pool if not shape.bfloat16 else (pool.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(qkv[:, : shape.heads], reference.rope(queries, positions, frequencies), atol=1e-5)
    tolerance = 2.0**-8 if shape.bfloat16 else 1e-5
    for i, position in enumerate(positions):
        page, slot = table[0, position // shape.page_size], position % shape.page_size
        np.testing.assert_allclose(found[page, 0, :, slot], rotated[i], rtol=tolerance, atol=1e-5)
        np.testing.assert_allclose(found[page, 1, :, slot], stored[i], rtol=tolerance, atol=1e-5)
