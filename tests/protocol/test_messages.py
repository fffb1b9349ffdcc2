"""Messages between actors survive the wire, and wrong ones are refused where they are decoded."""

import msgspec
import pytest
from msgspec.msgpack import decode, encode

from protocol.messages import CancelRequest, ExecuteStep, SchedulerInbox, StepCompleted, Submit, WorkerInbox
from protocol.sampling import SamplingParams
from protocol.step import RowStart, SampledRow, StepPlan, StepResult, StepRow, TokenLogprob, TopLogprob

SAMPLING = SamplingParams(max_tokens=4, temperature=0.5, logit_bias={3: -1.0}, stop_token_ids=(2,), seed=2**63 - 1)


def test_a_submit_arrives_as_it_was_sent() -> None:
    submit = Submit(request=2**63 - 1, prompt_tokens=[1, 2], sampling=SAMPLING, tenant="t")
    assert decode(encode(submit), type=SchedulerInbox) == submit


def test_a_step_and_its_result_arrive_as_they_were_sent() -> None:
    start = RowStart(0, 7, 1, [1, 2], 2, SAMPLING)
    plan = StepPlan(1, 5, [start], [StepRow(0, 0, 2, samples=True, new_pages=(4,))])
    assert decode(encode(ExecuteStep(plan)), type=WorkerInbox) == ExecuteStep(plan)
    logprob = TokenLogprob(3, -0.5, [TopLogprob(3, -0.5)])
    done = StepCompleted(0, StepResult(1, 5, [SampledRow(0, 7, 1, 3, logprob)], 0.25))
    assert decode(encode(done), type=SchedulerInbox) == done


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "Nonsense"},
        {"type": "CancelRequest"},
        {"type": "CancelRequest", "request": -1},
        {"type": "CancelRequest", "request": 2**63},
        {"type": "ExecuteStep", "plan": [0, 0, [], []]},
    ],
)
def test_what_is_not_in_an_inbox_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(encode(wrong), type=SchedulerInbox)


def test_a_message_is_tagged_by_its_name() -> None:
    assert decode(encode(CancelRequest(5))) == {"type": "CancelRequest", "request": 5}


@pytest.mark.parametrize("max_tokens", [0, -1, 2**31])
def test_sampling_bounds_are_checked_between_actors_too(max_tokens: int) -> None:
    fields = {"type": "Submit", "request": 1, "prompt_tokens": [1], "sampling": {"max_tokens": max_tokens}}
    with pytest.raises(msgspec.ValidationError):
        decode(encode(fields), type=SchedulerInbox)
