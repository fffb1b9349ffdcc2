"""Whole engine on counting devices, by seed. `TOKENSTAGE_SIMULATION_SEEDS=20000` runs more of them."""

import os
from dataclasses import replace

import pytest

from protocol.errors import PartFailed
from protocol.messages import RequestFailed
from tests.simulation.engine import Fault, FinalState, check_tokens, run_scenario
from tests.simulation.loop import run_virtual
from tests.simulation.scenario import Scenario, make_scenario

NUM_SEEDS = int(os.environ.get("TOKENSTAGE_SIMULATION_SEEDS", "300"))
SEEDS_A_TEST = 20


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_A_TEST))
def test_no_token_is_lost_repeated_or_foreign_and_everyone_ends_once(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        scenario = make_scenario(seed)
        final = run_virtual(run_scenario(scenario), seed)
        check(scenario, final)


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_worker_ends_every_live_request_as_internal_and_then_the_scheduler(seed: int) -> None:
    scenario = make_scenario(seed)
    final = run_virtual(run_scenario(scenario, fault=Fault("breaks", 3)), seed)
    assert isinstance(final.failure, PartFailed)
    check_that_all_ended(scenario, final)


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_answers_other_tokens_fails_its_group_before_anybody_sees_them(seed: int) -> None:
    scenario = replace(make_scenario(seed), num_ranks=2 + seed % 2)
    final = run_virtual(run_scenario(scenario, fault=Fault("lies", 3)), seed)
    assert isinstance(final.failure, PartFailed)
    assert "rank 0 has token" in str(final.failure)
    check_that_all_ended(scenario, final)


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_answers_no_more_fails_its_group_within_the_deadline(seed: int) -> None:
    scenario = replace(make_scenario(seed), num_ranks=2 + seed % 2)
    final = run_virtual(run_scenario(scenario, fault=Fault("hangs", 3)), seed)
    assert f"has no answer of rank {scenario.num_ranks - 1} 10." in str(final.failure)
    check_that_all_ended(scenario, final)


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (run_virtual(run_scenario(make_scenario(5)), 5) for _ in range(2))
    assert [seen.end for seen in first.seen.values()] == [seen.end for seen in second.seen.values()]


def check_that_all_ended(scenario: Scenario, final: FinalState) -> None:
    """After a failure: what was told until then is right, and who was accepted has its end."""
    for seen in final.seen.values():
        check_tokens(seen, scenario.vocab_size)
        if seen.accepted:
            assert seen.end is not None
    assert not final.scheduler.requests


def check(scenario: Scenario, final: FinalState) -> None:
    try:
        for seen in final.seen.values():
            check_tokens(seen, scenario.vocab_size)
            if isinstance(seen.end, RequestFailed):
                assert seen.end.code in {"context_length_exceeded", "overloaded", "resume_expired"}
        scheduler = final.scheduler
        scheduler.check()
        assert not scheduler.requests
        assert scheduler.num_running == scheduler.num_waiting == 0
        for group in scheduler.groups.values():
            assert group.pool.num_held == 0
            assert group.pool.num_free + group.pool.num_cached == scenario.num_pages
            assert group.num_waiting_tokens == 0
    except AssertionError as error:
        raise AssertionError(f"seed {scenario.seed}: {error}") from error
