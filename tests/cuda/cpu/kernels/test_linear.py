"""Packed matrices: each format against NumPy, its exactness, and rows that do not know their company."""

from typing import Any

import numpy as np
import pytest

from cuda.cpu.kernels.pack import Format, Packed, pack
from cuda.cpu.kernels.program import EMBED, LINEAR
from cuda.cpu.kernels.tile import BFLOAT16, FLOAT32, INT4, INT8
from cuda.kernels import reference
from tests.cuda.kernels.runner import aligned, run_op

FORMS: list[Format] = ["exact", "bfloat16", "int8", "int4"]


def _weight(columns: int, inputs: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(columns, inputs)).astype(np.float32)


def _linear(x: Any, packed: Packed, bias: Any = None) -> Any:
    width = packed.num_panels * 32
    source = aligned(x)
    out = aligned(np.full((len(x), width), 7))
    padded = aligned(np.pad(bias, (0, width - len(bias)))) if bias is not None else 0
    arguments = [
        source,
        x.shape[1] * 4,
        *packed.addresses,
        packed.num_inputs,
        packed.num_panels,
        padded,
        out,
        width * 4,
    ]
    run_op(LINEAR, len(x), arguments)
    return out[:, : packed.num_columns]


def _unpacked(packed: Packed) -> Any:
    """The matrix that a packed one stands for: its products with unit rows."""
    return _linear(np.eye(packed.num_inputs, dtype=np.float32), packed).T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 12, 19, 20, 33])
def test_each_format_multiplies_by_the_matrix_it_stands_for(form: Format, rows: int) -> None:
    packed = pack(_weight(70, 96), form)
    x, bias = _weight(rows, 96, seed=1), _weight(1, 70, seed=2)[0]
    expected = reference.linear(x, _unpacked(packed), bias)
    np.testing.assert_allclose(_linear(x, packed, bias), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("form", "worst"), [("exact", 0), ("bfloat16", 2**-8), ("int8", 0.005), ("int4", 0.07)])
def test_formats_are_as_close_as_their_bits_allow(form: Format, worst: float) -> None:
    weight = _weight(64, 64)
    error = np.abs(_unpacked(pack(weight, form)) - weight).max()
    assert error <= worst * np.abs(weight).max()


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_bits_alone_and_in_any_company(form: Format) -> None:
    packed = pack(_weight(96, 64), form)
    x = _weight(41, 64, seed=3)
    together = _linear(x, packed)
    for count in (1, 2, 3, 6, 11, 20):
        np.testing.assert_array_equal(_linear(x[40 - count : 40], packed), together[40 - count : 40])


def test_inputs_need_not_be_a_multiple_of_a_group() -> None:
    weight, x = _weight(33, 50), _weight(4, 50, seed=1)
    for form in FORMS:
        packed = pack(weight, form)
        assert packed.kind in (FLOAT32, BFLOAT16)
        np.testing.assert_allclose(_linear(x, packed), reference.linear(x, _unpacked(packed)), rtol=1e-5, atol=1e-4)


def test_exact_packing_finds_the_narrowest_format_that_loses_nothing() -> None:
    random = np.random.default_rng(4)
    bfloat16 = (_weight(64, 64).view(np.uint32) & 0xFFFF0000).view(np.float32)
    scale = random.uniform(0.01, 0.02, (64, 2, 1)).astype(np.float16).astype(np.float32)
    least = -random.uniform(0.1, 0.2, (64, 2, 1)).astype(np.float16).astype(np.float32)
    quants4, quants8 = random.integers(0, 16, (64, 2, 32)), random.integers(-127, 128, (64, 2, 32))
    quants4[..., 0], quants4[..., 1], quants8[..., 0] = 0, 15, 127
    q4_1 = (scale * quants4.astype(np.float32) + least).reshape(64, 64)
    q8_0 = (scale * quants8.astype(np.float32)).reshape(64, 64)
    for weight, kind in ((_weight(64, 64), FLOAT32), (bfloat16, BFLOAT16), (q4_1, INT4), (q8_0, INT8)):
        packed = pack(weight, "exact")
        assert packed.kind == kind
        np.testing.assert_array_equal(_unpacked(packed), weight)


@pytest.mark.parametrize("form", FORMS)
def test_embedding_reads_a_row_of_the_packed_matrix(form: Format) -> None:
    packed = pack(_weight(70, 64), form)
    tokens = np.array([[3, 69, 0], [31, 32, 33]], np.int32)
    slots, positions = np.array([1, 0, 1, 0], np.int32), np.array([0, 1, 2, 2], np.int32)
    out = aligned(np.zeros((4, 64)))
    run_op(EMBED, 4, [slots, positions, tokens, tokens.strides[0], *packed.addresses, 64, out, 256, 0, 70])
    np.testing.assert_array_equal(out, _unpacked(packed)[[31, 69, 33, 0]])


def test_tokens_that_another_rank_holds_are_embedded_as_zeros() -> None:
    packed = pack(_weight(70, 64)[32:69].copy(), "exact")
    tokens = np.array([[31, 32, 68, 69]], np.int32)
    slots, positions = np.zeros(4, np.int32), np.arange(4, dtype=np.int32)
    out = aligned(np.ones((4, 64)))
    run_op(EMBED, 4, [slots, positions, tokens, tokens.strides[0], *packed.addresses, 64, out, 256, 32, 37])
    np.testing.assert_array_equal(out, [np.zeros(64), *_weight(70, 64)[[32, 68]], np.zeros(64)])
