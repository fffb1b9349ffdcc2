"""Ops on single rows against the reference."""

import numpy as np
import pytest

from cuda.kernels import reference
from cuda.kernels.cpu_program import ADD_RMS_NORM, SILU_MUL, TAKE_ROWS
from tests.cuda.kernels.runner import aligned, run_op

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (70, 576)])
def test_add_rms_norm_updates_the_residual_and_norms_it(rows: int, width: int) -> None:
    residual, delta, weight = (RANDOM.normal(size=shape) for shape in ((rows, width), (rows, width), width))
    left, change, scale, out = aligned(residual), aligned(delta), aligned(weight), aligned(np.zeros((rows, width)))
    run_op(ADD_RMS_NORM, rows, [left, change, scale, out, width, width * 4, np.array([1e-5])])
    np.testing.assert_allclose(left, residual + delta, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out, reference.rms_norm(residual + delta, weight, 1e-5), rtol=1e-5, atol=1e-6)


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
