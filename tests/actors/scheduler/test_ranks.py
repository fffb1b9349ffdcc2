"""Several workers as one: what is gathered of them, and what happens when they are not of one mind."""

import pytest
from msgspec.structs import replace

from actors.scheduler.ranks import Ranks, RanksDisagree
from protocol.messages import MemoryExported, OpenPeers, WorkerReady
from protocol.step import StepResult, TokenLogprob
from tests.actors.scheduler.rig import Rig, make_config

PROMPT = [100, 101, 102]


def ready(worker: int, *, num_pages: int = 8, page_size: int = 4, epoch: int = 1) -> WorkerReady:
    return WorkerReady(worker=worker, epoch=epoch, num_pages=num_pages, page_size=page_size)


def two_steps(rig: Rig) -> tuple[StepResult, StepResult]:
    """Two steps in flight, and what a rank answers to them."""
    rig.submit(PROMPT, logprobs=0)
    assert rig.plan()
    assert rig.plan()
    return rig.execute(), rig.execute()


def test_memory_is_opened_in_rank_order_once_all_have_exported() -> None:
    ranks = Ranks(0, 3)
    assert ranks.exported(2, MemoryExported(2, 1, b"c")) is None
    assert ranks.exported(0, MemoryExported(0, 1, b"a")) is None
    assert ranks.exported(1, MemoryExported(1, 1, b"b")) == OpenPeers(1, [b"a", b"b", b"c"])


def test_memory_of_another_epoch_is_not_opened() -> None:
    ranks = Ranks(0, 2)
    assert ranks.exported(0, MemoryExported(0, 1, b"dead")) is None
    assert ranks.exported(1, MemoryExported(1, 2, b"b")) is None
    assert ranks.exported(0, MemoryExported(0, 2, b"a")) == OpenPeers(2, [b"a", b"b"])


def test_a_group_has_the_pages_of_its_smallest_rank() -> None:
    ranks = Ranks(0, 2)
    assert ranks.loaded(1, ready(5, num_pages=9)) is None
    pool = ranks.loaded(0, ready(4, num_pages=7))
    assert pool is not None
    assert (pool.num_pages, pool.page_size, pool.epoch) == (7, 4, 1)


def test_ranks_must_cut_pages_alike() -> None:
    ranks = Ranks(0, 2)
    ranks.loaded(0, ready(0, page_size=4))
    with pytest.raises(AssertionError, match="page size"):
        ranks.loaded(1, ready(1, page_size=8))


def test_a_step_counts_once_all_have_answered_and_takes_as_long_as_the_slowest() -> None:
    rig, ranks = Rig(make_config()), Ranks(0, 2)
    first, _ = two_steps(rig)
    assert ranks.answered(1, replace(first, duration_s=2.0), rig.group) is None
    assert ranks.answered(0, replace(first, duration_s=1.0), rig.group) == replace(first, duration_s=2.0)


def test_a_rank_may_be_a_step_ahead() -> None:
    rig, ranks = Rig(make_config()), Ranks(0, 2)
    first, second = two_steps(rig)
    assert ranks.answered(0, first, rig.group) is None
    assert ranks.answered(0, second, rig.group) is None
    agreed = ranks.answered(1, first, rig.group)
    assert agreed == first
    assert rig.complete(agreed)
    agreed = ranks.answered(1, second, rig.group)
    assert agreed == second
    assert rig.complete(agreed)
    assert rig.tokens[1] == rig.expected(1)[:2]


def test_stale_answers_and_second_ones_do_not_stand_for_a_rank() -> None:
    rig, ranks = Rig(make_config()), Ranks(0, 2)
    first, second = two_steps(rig)
    assert ranks.answered(0, replace(first, epoch=9), rig.group) is None
    assert ranks.answered(0, second, rig.group) is None  # its answer to the first is awaited
    assert ranks.answered(0, first, rig.group) is None
    assert ranks.answered(0, first, rig.group) is None
    assert ranks.answered(1, replace(first, step=first.step + 7), rig.group) is None
    assert ranks.answered(1, first, rig.group) == first


def test_another_token_is_told_with_step_slot_and_both() -> None:
    rig, ranks = Rig(make_config()), Ranks(4, 3)
    first, _ = two_steps(rig)
    row = first.rows[0]
    lie = replace(first, rows=[replace(row, token=row.token + 1)])
    ranks.answered(0, first, rig.group)
    ranks.answered(1, first, rig.group)
    words = f"group 4, step 0, slot {row.slot}: rank 0 has token {row.token}, rank 2 has token {row.token + 1}"
    with pytest.raises(RanksDisagree, match=f"^{words}$"):
        ranks.answered(2, lie, rig.group)


def test_another_log_probability_is_a_disagreement_too() -> None:
    rig, ranks = Rig(make_config()), Ranks(0, 2)
    first, _ = two_steps(rig)
    row = first.rows[0]
    ranks.answered(0, first, rig.group)
    with pytest.raises(RanksDisagree, match=r"logprob=0\.0.*logprob=-0\.125"):
        ranks.answered(1, replace(first, rows=[replace(row, logprob=TokenLogprob(row.token, -0.125))]), rig.group)


def test_missing_rows_are_a_disagreement_too() -> None:
    rig, ranks = Rig(make_config()), Ranks(0, 2)
    first, _ = two_steps(rig)
    ranks.answered(0, first, rig.group)
    with pytest.raises(RanksDisagree, match="rank 0 has 1 rows, rank 1 has 0"):
        ranks.answered(1, replace(first, rows=[]), rig.group)


def test_who_does_not_answer_what_others_have_answered_is_overdue() -> None:
    rig, ranks = Rig(make_config()), Ranks(2, 3)
    first, second = two_steps(rig)
    assert ranks.overdue(rig.group, 100.0, 10.0) is None  # nobody has answered: the step may just be long
    ranks.answered(0, first, rig.group)
    ranks.answered(0, second, rig.group)
    assert ranks.overdue(rig.group, 9.5, 10.0) is None
    ranks.answered(1, first, rig.group)
    words = ranks.overdue(rig.group, 1.0, 10.0)
    assert words == "group 2: step 0 has no answer of rank 2 10.5 s after another's"
    agreed = ranks.answered(2, first, rig.group)
    assert agreed is not None
    rig.complete(agreed)
    assert ranks.overdue(rig.group, 9.5, 10.0) is None  # the second step's time counts from the first one's end
    words = ranks.overdue(rig.group, 0.5, 10.0)
    assert words == "group 2: step 1 has no answer of rank 1, 2 10.0 s after another's"
