"""Ops on single rows against the reference."""

import numpy as np
import pytest

from cuda.cpu.kernels.memory import address
from cuda.cpu.kernels.program import ADD_RMS_NORM, SILU_MUL, SUM_PARTS, TAKE_ROWS
from cuda.kernels import reference
from tests.cuda.kernels.runner import aligned, run_op

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (70, 576)])
def test_add_rms_norm_updates_the_residual_and_norms_it(rows: int, width: int) -> None:
    residual, delta, weight = (RANDOM.normal(size=shape) for shape in ((rows, width), (rows, width), width))
    left, change, scale, out = aligned(residual), aligned(delta), aligned(weight), aligned(np.zeros((rows, width)))
    deltas = np.array([address(change)])
    run_op(ADD_RMS_NORM, rows, [left, deltas, 1, scale, out, width, width * 4, np.array([1e-5])])
    np.testing.assert_allclose(left, residual + delta, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out, reference.rms_norm(residual + delta, weight, 1e-5), rtol=1e-5, atol=1e-6)


def test_without_a_delta_the_residual_is_only_normed() -> None:
    residual = RANDOM.normal(size=(3, 64))
    left, out = aligned(residual), aligned(np.zeros((3, 64)))
    run_op(ADD_RMS_NORM, 3, [left, 0, 0, aligned(np.ones(64)), out, 64, 256, np.array([1e-5])])
    np.testing.assert_array_equal(left, residual.astype(np.float32))
    np.testing.assert_allclose(out, reference.rms_norm(residual, np.ones(64), 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_parts_are_summed_in_their_order_in_float32(num_parts: int) -> None:
    parts = [aligned(RANDOM.normal(size=(5, 96)) * 10.0**i) for i in range(num_parts)]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    addresses = np.array([address(part) for part in parts])
    summed, left, out = (aligned(np.zeros((5, 96))) for _ in range(3))
    run_op(SUM_PARTS, 5, [addresses, num_parts, summed, 96, 384])
    np.testing.assert_array_equal(summed, total)
    left[:] = start = RANDOM.normal(size=(5, 96)).astype(np.float32)
    run_op(ADD_RMS_NORM, 5, [left, addresses, num_parts, aligned(np.ones(96)), out, 96, 384, np.array([1e-5])])
    np.testing.assert_array_equal(left, start + total)


@pytest.mark.parametrize("width", [1, 50, 1536])
def test_silu_mul_holds_over_the_whole_range(width: int) -> None:
    values = RANDOM.normal(size=(5, 2 * width)) * 30
    values[0, 0], values[1, 0], values[2, 0] = -200, 200, 0
    source, out = aligned(values), aligned(np.zeros((5, width)))
    run_op(SILU_MUL, 5, [source, width * 8, out, width * 4, width])
    np.testing.assert_allclose(out, reference.silu_mul(values), rtol=2e-6, atol=1e-6)


def test_take_rows_copies_the_rows_named() -> None:
    x, out = aligned(RANDOM.normal(size=(6, 20))), aligned(np.zeros((3, 20)))
    run_op(TAKE_ROWS, 3, [np.array([5, 0, 5], np.int32), x, 80, out, 80, 20])
    np.testing.assert_array_equal(out, x[[5, 0, 5]])
