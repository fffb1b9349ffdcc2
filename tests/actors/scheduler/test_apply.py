import pytest
from msgspec.structs import replace

from cuda.devices.counting import expected_output
from protocol.messages import RequestFinished
from tests.actors.scheduler.rig import VOCAB_SIZE, Rig, make_config

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
