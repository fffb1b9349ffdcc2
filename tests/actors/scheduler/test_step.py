import pytest
from msgspec.structs import replace

from cuda.devices.counting import expected_output
from protocol.messages import RequestFinished
from protocol.step import StepPlan
from tests.actors.scheduler.rig import VOCAB_SIZE, Rig, make_config


def counts(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [row.count for row in plan.rows]


def prompt(length: int, first: int = 100) -> list[int]:
    return [first + index for index in range(length)]


def test_decodes_come_first_and_a_prompt_is_cut_at_the_budget_on_a_page_end() -> None:
    rig = Rig(make_config(step_tokens=16, overlap=False))
    rig.submit(prompt(5), ignore_eos=True)
    rig.step()
    rig.submit(prompt(40, 200), ignore_eos=True)
    plan = rig.step()
    assert counts(plan) == [1, 12]  # 15 tokens are left, 12 end a page of 4
    assert counts(rig.step()) == [1, 12]
    assert counts(rig.step()) == [1, 12]
    assert counts(rig.step()) == [1, 4]
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}
    rig.check_idle()


def test_a_page_of_prefill_fits_beside_any_number_of_decodes() -> None:
    rig = Rig(make_config(max_running=16, step_tokens=10, overlap=False), page_size=4)
    for number in range(12):
        rig.submit([number + 10], max_tokens=30, ignore_eos=True)
    for _ in range(6):
        rig.step()
    plan = rig.step()
    assert rig.group.max_rows == 6
    assert plan is not None
    assert plan.num_tokens <= 10
    rig.run()
    rig.check_idle()


def test_the_next_step_is_planned_before_the_token_is_known() -> None:
    rig = Rig(make_config())
    rig.submit(prompt(5), ignore_eos=True)
    first, second, third = rig.plan(), rig.plan(), rig.plan()
    assert counts(first) == [5]
    assert counts(second) == [1]
    assert second is not None
    assert second.rows[0].start == 5
    assert third is None  # two in flight
    rig.run()
    assert rig.tokens[1] == rig.expected(1)


def test_without_overlap_one_step_is_in_flight() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(prompt(5))
    assert rig.plan() is not None
    assert rig.plan() is None


def test_a_row_whose_limit_is_reached_by_the_step_in_flight_is_not_planned_again() -> None:
    rig = Rig(make_config())
    rig.submit(prompt(5), max_tokens=1)
    assert rig.plan() is not None
    assert rig.plan() is None
    rig.run()
    assert len(rig.tokens[1]) == 1


def test_pages_are_told_to_the_device_chunk_by_chunk() -> None:
    rig = Rig(make_config(step_tokens=8, overlap=False), page_size=4)
    rig.submit(prompt(10), ignore_eos=True)
    told = []
    for _ in range(5):
        plan = rig.step()
        assert plan is not None
        told.append(len(plan.rows[0].new_pages))
    assert told == [2, 1, 0, 0, 1]  # 8 tokens, 10, then decode: token 12 opens a page


def test_however_small_the_budget_a_page_of_prefill_is_computed() -> None:
    rig = Rig(make_config(step_tokens=1, overlap=False), page_size=4)
    rig.submit(prompt(6))
    assert [counts(rig.step()), counts(rig.step())] == [[4], [2]]
    rig.run()
    assert rig.tokens[1] == rig.expected(1)


PROMPT = [100 + index for index in range(6)]
FIRST, SECOND, THIRD = expected_output(PROMPT, 3, VOCAB_SIZE)


def finished(rig: Rig, number: int) -> RequestFinished:
    end = rig.ends[number]
    assert isinstance(end, RequestFinished)
    return end


def test_the_end_token_ends_and_is_emitted() -> None:
    rig = Rig(make_config(), eos=SECOND)
    rig.submit(PROMPT)
    rig.run()
    assert rig.tokens[1] == [FIRST, SECOND]
    assert finished(rig, 1).reason == "stop"
    assert finished(rig, 1).stop_token == SECOND
    rig.check_idle()


def test_a_row_that_ended_one_step_ago_has_its_extra_token_dropped() -> None:
    rig = Rig(make_config(), eos=FIRST)
    rig.submit(PROMPT)
    rig.plan()
    rig.plan()  # already computes the token after the end
    rig.run()
    assert rig.tokens[1] == [FIRST]
    assert rig.group.pool.num_cached == 1  # 6 tokens of prompt: one whole page of 4
    rig.check_idle()


def test_ignore_eos_goes_on_to_the_limit() -> None:
    rig = Rig(make_config(), eos=FIRST)
    rig.submit(PROMPT, max_tokens=3, ignore_eos=True)
    rig.run()
    assert rig.tokens[1] == [FIRST, SECOND, THIRD]
    assert finished(rig, 1).reason == "length"


def test_a_stop_token_before_min_tokens_does_not_end() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT, max_tokens=3, min_tokens=1, stop_token_ids=(FIRST, SECOND))
    rig.run()
    assert rig.tokens[1] == [FIRST, SECOND]
    assert finished(rig, 1).stop_token == SECOND


def test_a_second_answer_and_one_of_another_epoch_are_stale() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT)
    rig.plan()
    rig.plan()
    result = rig.execute()
    assert not rig.complete(replace(result, epoch=9))
    assert not rig.complete(replace(result, step=result.step + 1))
    assert rig.complete(result)
    assert not rig.complete(result)
    assert rig.tokens[1] == [FIRST]


def test_tokens_of_an_earlier_admission_are_stale() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(PROMPT)
    rig.plan()
    result = rig.execute()
    rows = [replace(row, incarnation=row.incarnation + 1) for row in result.rows]
    assert rig.complete(replace(result, rows=rows))
    assert rig.tokens[1] == []


@pytest.mark.parametrize("overlap", [True, False])
def test_out_of_credit_it_leaves_the_batch_and_goes_on_when_there_is_more(*, overlap: bool) -> None:
    rig = Rig(make_config(overlap=overlap))
    rig.submit(PROMPT, max_tokens=5, ignore_eos=True, credit=2)
    rig.run()
    assert rig.tokens[1] == [FIRST, SECOND]
    assert rig.scheduler.num_running == rig.scheduler.num_waiting == 0
    assert rig.group.pool.num_held == 0
    assert rig.group.pool.num_cached == 1
    rig.scheduler.grant(1, 100)
    rig.run()
    assert rig.tokens[1] == rig.expected(1)
    rig.check_idle()


def test_without_any_credit_nothing_is_computed() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT, credit=0)
    assert rig.plan() is None
    rig.scheduler.grant(1, 1)
    rig.run()
    assert rig.tokens[1] == [FIRST]


def test_times_are_measured_from_submission() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(PROMPT, max_tokens=3, ignore_eos=True)
    rig.run()  # one second a step
    timing = finished(rig, 1).timing
    assert (timing.queue_ms, timing.ttft_ms, timing.tpot_ms, timing.total_ms) == (0.0, 1000.0, 1000.0, 3000.0)
    assert rig.scheduler.stats.inter_token_latency.total == 2.0
