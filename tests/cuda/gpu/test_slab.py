import pytest
import torch

from cuda.gpu.slab import DEFAULTS, Exchanged, Slab, Thresholds, algorithm

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("world_size", "num_bytes", "expected"),
    [
        (2, 8 * MIB, "one-shot"),
        (3, 512 * KIB, "one-shot"),
        (4, 512 * KIB, "one-shot"),
        (4, 512 * KIB + 1, "two-shot"),
        (5, 256 * KIB, "one-shot"),
        (8, 256 * KIB, "one-shot"),
        (8, 256 * KIB + 1, "two-shot"),
    ],
)
def test_small_parts_take_one_shot(world_size: int, num_bytes: int, expected: str) -> None:
    assert algorithm(num_bytes, world_size) == expected


def test_parts_of_a_slab_have_room_for_all_that_is_exchanged_and_do_not_overlap() -> None:
    row_bytes = 8192 * 2
    exchanged = Exchanged(torch.bfloat16, 8192, 8192, 1e-5, 64, (range(100), range(100, 150)))
    slab = Slab.of(exchanged, 8, DEFAULTS)
    assert slab.round_rows * row_bytes == 8 * MIB
    assert slab.slot_bytes == 256 * KIB
    assert slab.sums == slab.slots + 2 * 8 * 256 * KIB
    assert slab.parts == slab.sums + 8 * MIB
    assert slab.logits == slab.parts + 8192 * row_bytes
    assert slab.num_bytes - slab.logits >= 64 * 150 * 4
    assert all(offset % 256 == 0 for offset in (slab.slots, slab.sums, slab.parts, slab.logits))


def test_two_ranks_need_no_room_for_sums_of_two_shots() -> None:
    slab = Slab.of(Exchanged(torch.float32, 64, 128, 1e-5), 2, DEFAULTS)
    assert slab.slot_bytes == 64 * 512
    assert slab.sums == slab.parts


def test_a_large_part_is_exchanged_in_rounds() -> None:
    slab = Slab.of(Exchanged(torch.float32, 10, 64, 1e-5), 3, Thresholds(256, 256, 4 * 256))
    assert list(slab.rounds(9)) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert list(slab.rounds(0)) == []


def test_a_row_larger_than_a_round_is_a_round() -> None:
    assert Slab.of(Exchanged(torch.float32, 10, 64, 1e-5), 3, Thresholds(16, 16, 64)).round_rows == 1
