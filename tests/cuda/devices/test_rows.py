import pytest

from cuda.devices.rows import passes
from protocol.step import StepRow

ROWS = [StepRow(4, 9, 1, samples=True), StepRow(2, 0, 7, samples=True), StepRow(1, 5, 3, samples=False)]


def test_passes_keep_order_and_sample_at_a_rows_end() -> None:
    assert list(passes(ROWS, 4)) == [
        [StepRow(4, 9, 1, samples=True), StepRow(2, 0, 3, samples=False)],
        [StepRow(2, 3, 4, samples=True)],
        [StepRow(1, 5, 3, samples=False)],
    ]


@pytest.mark.parametrize("max_tokens", [11, 12])
def test_a_step_that_fits_is_one_pass(max_tokens: int) -> None:
    assert list(passes(ROWS, max_tokens)) == [ROWS]


def test_an_empty_step_has_no_pass() -> None:
    assert list(passes([], 4)) == []
