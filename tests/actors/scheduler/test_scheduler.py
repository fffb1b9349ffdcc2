import pytest

from cuda.devices.counting import expected_output
from protocol.messages import RequestFailed, RequestFinished, Slo
from tests.actors.scheduler.rig import SEED, VOCAB_SIZE, Rig, make_config

PROMPT = [100 + index for index in range(6)]


def failure(rig: Rig, number: int) -> RequestFailed:
    end = rig.ends[number]
    assert isinstance(end, RequestFailed)
    return end


def reason(rig: Rig, number: int) -> str:
    end = rig.ends[number]
    assert isinstance(end, RequestFinished)
    return end.reason


def test_the_limit_is_the_least_of_model_and_smallest_pool() -> None:
    assert Rig(make_config(), num_pages=8, page_size=4).max_model_len == 32
    assert Rig(make_config(), num_pages=8, page_size=4, max_model_len=20).max_model_len == 20


@pytest.mark.parametrize(("length", "max_tokens"), [(31, 1), (30, 2), (1, 31)])
def test_up_to_the_limit_is_served(length: int, max_tokens: int) -> None:
    rig = Rig(make_config(), num_pages=8, page_size=4)
    rig.submit(list(range(10, 10 + length)), max_tokens=max_tokens, ignore_eos=True)
    rig.run()
    assert rig.tokens[1] == rig.expected(1)
    assert len(rig.tokens[1]) == max_tokens


@pytest.mark.parametrize(
    ("length", "max_tokens", "param", "value"),
    [(32, 1, "prompt_tokens", "32"), (33, 1, "prompt_tokens", "33"), (31, 2, "max_tokens", "33")],
)
def test_over_the_limit_is_refused_at_once_naming_value_and_limit(
    length: int, max_tokens: int, param: str, value: str
) -> None:
    rig = Rig(make_config(), num_pages=8, page_size=4)
    rig.submit(list(range(length)), max_tokens=max_tokens)
    refused = failure(rig, 1)
    assert (refused.code, refused.param) == ("context_length_exceeded", param)
    assert value in refused.message
    assert "32" in refused.message
    rig.check_idle()


def test_tokens_out_of_the_vocabulary_and_empty_prompts_are_refused() -> None:
    rig = Rig(make_config())
    for prompt, output in (([], []), ([VOCAB_SIZE], []), ([1], [VOCAB_SIZE])):
        number = rig.submit(prompt, output_tokens=output)
        assert failure(rig, number).code == "invalid_request"


def test_a_full_queue_refuses_with_a_hint() -> None:
    rig = Rig(make_config(max_running=1, max_waiting=2))
    for _ in range(4):
        rig.submit(PROMPT)  # the first has a slot as good as certain, two may wait
    refused = failure(rig, 4)
    assert refused.code == "overloaded"
    assert refused.retry_after_ms is not None
    assert refused.retry_after_ms > 0
    rig.run()
    rig.check_idle()


def test_who_was_left_waiting_by_a_plan_is_no_newcomer() -> None:
    rig = Rig(make_config(max_running=2, max_waiting=1), num_pages=8, page_size=4)
    rig.submit(list(range(10, 30)), max_tokens=4, ignore_eos=True)
    rig.plan()
    rig.submit(list(range(50, 70)), max_tokens=1)  # a slot is free, pages are not
    rig.step()
    rig.submit([5], max_tokens=1)
    assert failure(rig, 3).code == "overloaded"


def test_too_many_waiting_tokens_are_refused_but_never_a_lone_request() -> None:
    rig = Rig(make_config(max_waiting_tokens=10))
    rig.submit(list(range(12)))
    rig.submit([1])
    assert failure(rig, 2).code == "overloaded"
    rig.run()
    assert rig.tokens[1] == rig.expected(1)


def test_a_request_without_seed_gets_one_and_keeps_a_given_one() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT)
    rig.submit(PROMPT[:3], seed=5)
    plan = rig.plan()
    assert plan is not None
    assert [start.sampling.seed for start in plan.starts] == [SEED, 5]


@pytest.mark.parametrize("cached", [False, True])
def test_warm_computes_the_prompt_and_emits_nothing(*, cached: bool) -> None:
    rig = Rig(make_config())
    if cached:
        rig.submit(PROMPT, max_tokens=1)
        rig.run()
    number = rig.submit(PROMPT, warm=True, credit=0, max_tokens=10_000)
    rig.run()
    assert rig.tokens[number] == []
    assert reason(rig, number) == "length"
    follower = rig.submit([*PROMPT, 1], max_tokens=1)
    rig.run()
    assert rig.ends[follower].usage.cached_tokens == 4  # type: ignore[union-attr] # it has finished
    rig.check_idle()


def test_a_resumed_request_goes_on_after_what_it_has() -> None:
    rig = Rig(make_config())
    held = expected_output(PROMPT, 3, VOCAB_SIZE)
    rig.submit(PROMPT, output_tokens=held, max_tokens=8, ignore_eos=True)
    rig.run()
    assert held + rig.tokens[1] == expected_output(PROMPT, 8, VOCAB_SIZE)
    assert rig.ends[1].usage.completion_tokens == 8  # type: ignore[union-attr] # it has finished
    assert rig.ends[1].usage.prompt_tokens == len(PROMPT)  # type: ignore[union-attr] # likewise


def test_a_resumed_request_that_has_everything_ends_at_once() -> None:
    held = expected_output(PROMPT, 2, VOCAB_SIZE)
    rig = Rig(make_config(), eos=held[1])
    rig.submit(PROMPT, output_tokens=held[:1], max_tokens=1)
    rig.submit(PROMPT, output_tokens=held, max_tokens=9)
    assert (reason(rig, 1), reason(rig, 2)) == ("length", "stop")
    rig.check_idle()


def test_cancel_works_wherever_a_request_is() -> None:
    rig = Rig(make_config(max_running=1))
    running, waiting = rig.submit(PROMPT), rig.submit([5])
    paused = rig.submit([6], credit=0)
    rig.plan()
    for number in (running, waiting, paused):
        rig.scheduler.cancel(number, rig.now)
        rig.take()
        assert reason(rig, number) == "cancelled"
    rig.scheduler.cancel(99, rig.now)
    rig.run()
    rig.check_idle()


def test_a_stop_string_ends_with_stop_and_the_token_in_flight_is_dropped() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT, ignore_eos=True)
    rig.step()
    rig.plan()
    rig.scheduler.stop(1, rig.now)
    rig.run()
    assert reason(rig, 1) == "stop"
    assert len(rig.tokens[1]) == 1
    rig.check_idle()


def test_without_credit_for_too_long_it_fails() -> None:
    rig = Rig(make_config(resume_ttl_s=60.0))
    rig.submit(PROMPT, credit=0)
    rig.now = 59.0
    rig.scheduler.expire(rig.now)
    rig.take()
    assert 1 not in rig.ends
    rig.now = 60.0
    rig.scheduler.expire(rig.now)
    rig.take()
    assert failure(rig, 1).code == "resume_expired"


def test_slo_targets_are_recorded() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(PROMPT, slo=Slo(ttft_ms=1000, tpot_ms=1000))  # one second a step
    rig.submit(PROMPT, slo=Slo(ttft_ms=999))
    rig.run()
    assert (rig.scheduler.stats.slo_attained, rig.scheduler.stats.slo_missed) == (1, 1)


def test_a_request_goes_where_its_prefix_is_cached() -> None:
    rig = Rig(make_config(), num_groups=2, page_size=2)
    rig.submit(PROMPT, max_tokens=1)
    rig.submit([20, 21, 22, 23, 24, 25], max_tokens=1)
    assert [rig.request(number).group for number in (1, 2)] == [0, 1]  # the first is busy
    rig.run()
    rig.submit([20, 21, 22, 23, 30], max_tokens=1)
    assert rig.request(3).group == 1
    rig.run()
    rig.check_idle()


def test_a_busy_group_is_left_for_an_idle_one_even_if_it_has_the_prefix() -> None:
    rig = Rig(make_config(), num_groups=2, page_size=2)
    rig.submit(PROMPT, max_tokens=8)
    rig.plan()
    rig.submit(PROMPT, max_tokens=8)
    assert rig.request(2).group == 1
