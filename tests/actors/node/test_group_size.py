"""Predictions and the choice, by hand."""

from dataclasses import replace

import pytest

from actors.node.group_memory import Memory, Room
from actors.node.plan_table import table
from actors.node.prediction import ROWS, Candidate, candidates, choose, exchange_time, fullest, shards_by_size, sizes_of
from cuda.check.trial import Pace
from cuda.models.shard import split
from tests.actors.node.test_prediction import FULLER, GIB, HIDDEN, LAYERS, VOCAB, WHOLE, spec, wanted

ROOM = Room(100 << 20, 4096, "")
PLENTY = Memory(GIB, is_shared=True, pool_share=0.25, reserve_bytes=0)


def timed(size: int, step_ms: float, hindrance: str = "") -> Candidate:
    return Candidate(size, 8 // size, hindrance, ROOM, step_ms / 1e3, 0.0)


@pytest.mark.parametrize(("num_devices", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (8, (1, 2, 4, 8))])
def test_sizes_leave_no_device_over(num_devices: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of(num_devices) == sizes


def test_a_step_takes_as_long_as_the_fullest_rank_computes() -> None:
    assert fullest(spec(), split(spec(), 2)) == FULLER
    one, two = candidates(2, wanted(), PLENTY, [Pace(1, 1e-9), Pace(2, 2e-9, 0.0)])
    assert (one.num_groups, two.num_groups) == (2, 1)
    assert one.compute_s == pytest.approx(WHOLE * 1e-9)
    assert two.compute_s == pytest.approx(FULLER * 2e-9)


def test_exchanges_cost_a_latency_each_and_their_bytes() -> None:
    pace = Pace(4, 1e-9, latency_s=1e-5, link_bytes_per_s=1e9)
    sums = 2 * LAYERS + 1
    moved = sums * 2 * 3 / 4 * (ROWS * HIDDEN * 4) + 3 / 4 * ROWS * VOCAB * 4
    assert exchange_time(4, wanted(), pace) == pytest.approx((sums + 1) * 1e-5 + moved / 1e9)
    assert exchange_time(1, wanted(), pace) == 0


def test_halves_of_values_move_half_the_bytes_of_a_sum() -> None:
    pace = Pace(2, 1e-9, link_bytes_per_s=1e9)
    logits = ROWS * VOCAB * 4 / 2 / 1e9
    whole, half = (exchange_time(2, replace(wanted(), item_bytes=item), pace) - logits for item in (4, 2))
    assert half == pytest.approx(whole / 2)


def test_the_shortest_step_is_chosen() -> None:
    assert choose([timed(1, 10), timed(2, 6), timed(4, 5), timed(8, 5.5)]).size == 4
    assert choose([timed(1, 10), timed(2, 10)]).size == 1


def test_the_reason_names_all_that_could_be() -> None:
    reason = choose([timed(1, 10), timed(2, 6), timed(4, 5, "no")]).reason
    assert reason == "its step of 8 rows is predicted to take 6.00 ms, 10.00 ms with tp 1"


def test_what_does_not_fit_is_not_chosen() -> None:
    choice = choose([timed(1, 1, "needs 15.0 of 10.0 GiB"), timed(2, 9), timed(4, 12)])
    assert choice.size == 2
    assert "tp 1" not in choice.reason
    assert choose([timed(1, 1, "needs 15.0 of 10.0 GiB"), timed(2, 9)]).reason == "the only size that can be"


def test_without_times_the_smallest_that_fits_is_chosen() -> None:
    tried = [Candidate(1, 4, "needs 15.0 of 10.0 GiB", ROOM), Candidate(2, 2, "", ROOM), Candidate(4, 1, "", ROOM)]
    assert choose(tried).size == 2


def test_when_nothing_fits_the_largest_that_can_be_shared_out_so_is_tried() -> None:
    tried = [timed(1, 1, "needs 15"), timed(2, 1, "needs 8"), Candidate(4, 1, "the model has 2 query heads")]
    choice = choose(tried)
    assert choice.size == 2
    assert "needs 8" in choice.reason


def test_a_size_at_which_a_rank_holds_nothing_is_hindered() -> None:
    one, seven = candidates(7, wanted(), PLENTY)
    assert not one.hindrance
    assert "6 query heads: 7 ranks" in seven.hindrance
    assert [type(shards) for shards in shards_by_size(spec(), 7).values()] == [tuple, str]


def test_a_link_that_cannot_be_used_hinders_a_size() -> None:
    one, two = candidates(2, wanted(), PLENTY, [Pace(1, 1e-9), Pace(2, 1e-9, hindrance="GPU 0 cannot reach GPU 1")])
    assert (one.hindrance, two.hindrance) == ("", "GPU 0 cannot reach GPU 1")
    assert two.step_s is None


def test_the_table_shows_what_was_compared() -> None:
    tried = [
        Candidate(1, 2, "needs 15.0 of 10.0 GiB", ROOM, 0.01, 0.0),
        Candidate(2, 1, "", Room(50 << 20, 81_920, ""), 0.005, 0.00025),
    ]
    assert table(tried, {2}).splitlines() == [
        "   tp  groups  fits  weights/rank  KV tokens/group  compute ms  exchange ms  step ms",
        "    1       2    no       100 MiB            4,096      10.000        0.000   10.000  needs 15.0 of 10.0 GiB",
        "*   2       1   yes        50 MiB           81,920       5.000        0.250    5.250",
    ]


def test_the_table_says_what_is_not_known() -> None:
    assert table([Candidate(1, 2), Candidate(2, 1)], {1}).splitlines()[1].split() == [*"*12?", *"-----"]
