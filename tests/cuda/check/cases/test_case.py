"""Shares of a tolerance, by hand."""

import numpy as np
import pytest
import torch

from cuda.check.cases.case import equal_share, used_share

RIGHT = np.array([1.0, -2.0])


def test_the_worst_element_says_how_much_of_the_tolerance_is_used() -> None:
    assert used_share(torch.tensor([1.0, -2.5]), RIGHT, 0.2, 0.1) == pytest.approx(1.0)
    assert used_share(np.array([1.15, -2.0]), RIGHT, 0.2, 0.1) == pytest.approx(0.5)
    assert used_share(torch.tensor([]), np.array([]), 0.1, 0.1) == 0


def test_what_is_no_number_is_never_right() -> None:
    assert used_share(torch.tensor([1.0, float("nan")]), RIGHT, 0.2, 0.1) == float("inf")


def test_another_shape_is_a_mistake_of_the_case() -> None:
    with pytest.raises(ValueError, match="is not the shape"):
        used_share(torch.zeros(3), RIGHT, 0.2, 0.1)


def test_equal_is_equal_in_every_element() -> None:
    assert equal_share(torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.0])) == 0
    assert equal_share(torch.tensor([1.0, -2.0]), RIGHT + 1e-6) == float("inf")
    assert equal_share(torch.tensor([1.0]), RIGHT) == float("inf")
