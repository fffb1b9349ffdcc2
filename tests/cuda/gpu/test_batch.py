import numpy as np
import pytest

from cuda.devices.rows import Ints, Results
from cuda.gpu.batch import BatchArrays, BatchShape, fill, num_result_words, padded_rows, results_over
from cuda.kernels.attention_plan import WorkPlanner
from protocol.step import StepRow

SHAPE = BatchShape(max_tokens=12, max_rows=10, max_items=40, max_updates=3)
PLANNER = WorkPlanner(group=2, num_kv_heads=1, window=0, num_blocks=4, max_partial_rows=8, large_tiles=True)
STALE = 77


@pytest.fixture
def batch() -> BatchArrays[Ints]:
    """As an earlier pass left it."""
    return BatchArrays.over(np.full(SHAPE.begins[-1], STALE, np.int32), SHAPE)


def test_a_decode_pass_is_padded_with_rows_that_are_nobodys(batch: BatchArrays[Ints]) -> None:
    extent = fill(batch, [StepRow(slot, 30 + slot, 1, samples=slot != 5) for slot in (4, 5, 2)], PLANNER)
    assert (extent.num_tokens, extent.num_rows, extent.is_decode) == (4, 4, True)
    assert batch.token_slots[:5].tolist() == [4, 5, 2, -1, STALE]
    assert batch.token_positions[:5].tolist() == [34, 35, 32, 0, STALE]
    assert batch.sampled_tokens[:5].tolist() == [0, 1, 2, -1, STALE]
    assert batch.sampled_slots[:5].tolist() == [4, -1, 2, -1, STALE]
    assert batch.sampled_positions[[0, 2]].tolist() == [35, 33]
    assert [row.slot for row in extent.sampling] == [4, 2]
    assert extent.places == (0, 2)


def test_tokens_of_a_mixed_pass_lie_one_after_another_and_only_sampling_rows_are_sampled(
    batch: BatchArrays[Ints],
) -> None:
    rows = [StepRow(3, 9, 1, samples=True), StepRow(0, 4, 3, samples=False), StepRow(7, 0, 2, samples=True)]
    extent = fill(batch, rows, PLANNER)
    assert (extent.num_tokens, extent.num_rows, extent.is_decode) == (6, 2, False)
    assert batch.token_slots[:7].tolist() == [3, 0, 0, 0, 7, 7, STALE]
    assert batch.token_positions[:7].tolist() == [9, 4, 5, 6, 0, 1, STALE]
    assert batch.sampled_tokens[:3].tolist() == [0, 5, STALE]
    assert batch.sampled_slots[:3].tolist() == [3, 7, STALE]
    assert batch.sampled_positions[:3].tolist() == [10, 2, STALE]
    assert extent.places == (0, 1)


def test_a_chunk_that_samples_nothing_has_no_sampled_row(batch: BatchArrays[Ints]) -> None:
    extent = fill(batch, [StepRow(0, 4, 3, samples=False)], PLANNER)
    assert (extent.num_rows, extent.sampling) == (0, ())


def test_the_work_list_is_the_planners(batch: BatchArrays[Ints]) -> None:
    rows = [StepRow(3, 9, 1, samples=True), StepRow(0, 4, 3, samples=False)]
    extent = fill(batch, rows, PLANNER)
    items, counts = PLANNER.work_items([3, 0], [9, 4], [1, 3])
    assert batch.num_items.tolist() == counts.tolist()
    np.testing.assert_array_equal(batch.items[: extent.num_items], items)


@pytest.mark.parametrize(
    ("num_rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (17, 24), (60, 60), (58, 60), (33, 40)]
)
def test_decode_passes_are_padded_to_few_sizes_but_never_beyond_the_buffers(num_rows: int, padded: int) -> None:
    assert padded_rows(num_rows, 60) == padded


def test_arrays_begin_at_whole_vectors_and_none_overlaps_another() -> None:
    flat = np.zeros(SHAPE.begins[-1], np.int32)
    batch: BatchArrays[Ints] = BatchArrays.over(flat, SHAPE)
    arrays = [
        batch.num_items, batch.sampled_tokens, batch.sampled_slots, batch.sampled_positions, batch.token_slots,
        batch.token_positions, batch.updates, batch.items,
    ]  # fmt: skip
    for array in arrays:
        assert (array.ctypes.data - flat.ctypes.data) % 16 == 0
        np.add(array, 1, out=array)
    assert flat.max() == 1
    assert batch.items.shape == (40, 8)


def test_results_share_their_words() -> None:
    flat = np.arange(num_result_words(3), dtype=np.int32)
    results: Results[Ints] = results_over(flat, 3, np.float32)
    assert results.tokens.tolist() == [0, 1, 2]
    assert results.logprobs.view(np.int32).tolist() == [3, 4, 5]
    assert results.top_ids[2].tolist() == list(range(46, 66))
    assert results.top_logprobs[0].view(np.int32).tolist() == list(range(66, 86))
