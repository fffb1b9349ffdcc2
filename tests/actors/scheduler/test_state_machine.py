"""Any order of submissions, cancels, credit, steps and late or stale answers, against what must always hold.

`TOKENSTAGE_STATE_EXAMPLES=20000` runs more of them, at random instead of always the same.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from protocol.messages import RequestFailed, RequestFinished
from protocol.step import StepResult
from tests.actors.scheduler.rig import Rig, make_config

NUM_EXAMPLES = int(os.environ.get("TOKENSTAGE_STATE_EXAMPLES", "500"))
PREFIXES = [[5] * 40, [6, 7] * 20, list(range(10, 50))]


class SchedulerMachine(RuleBasedStateMachine):
    """A small pool, so that most things happen soon."""

    rig: Rig

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        num_pages=st.integers(6, 24),
        max_running=st.integers(1, 4),
        vocab_size=st.sampled_from([60, 1000]),
        num_groups=st.sampled_from([1, 1, 2]),
        flags=st.fixed_dictionaries(
            {
                "overlap": st.sampled_from([True, True, False]),
                "prefix_cache": st.sampled_from([True, True, False]),
                "chunked_prefill": st.sampled_from([True, True, False]),
                "batching": st.sampled_from(["continuous", "continuous", "static"]),
                "step_tokens": st.integers(2, 24),
                "max_waiting": st.sampled_from([2, 100]),
            }
        ),
    )
    def begin(
        self,
        *,
        page_size: int,
        num_pages: int,
        max_running: int,
        vocab_size: int,
        num_groups: int,
        flags: dict[str, object],
    ) -> None:
        config = make_config(max_running=max_running, resume_ttl_s=20.0, **flags)
        self.rig = Rig(config, num_pages=num_pages, page_size=page_size, vocab_size=vocab_size, num_groups=num_groups)
        self.results: list[tuple[int, StepResult]] = []
        """Computed, not yet told."""
        self.old: list[tuple[int, StepResult]] = []

    @rule(
        prefix=st.sampled_from(PREFIXES),
        length=st.integers(1, 24),
        own=st.lists(st.integers(0, 59), max_size=6),
        max_tokens=st.integers(1, 20),
        fields=st.fixed_dictionaries(
            {
                "priority": st.sampled_from([0, 0, 5]),
                "tenant": st.sampled_from("ab"),
                "cache_salt": st.sampled_from(["", "", "salt"]),
                "credit": st.sampled_from([0, 1, 3, 100, 100, 100]),
                "ignore_eos": st.booleans(),
                "warm": st.sampled_from([False] * 9 + [True]),
            }
        ),
    )
    def submit(
        self, prefix: list[int], length: int, own: list[int], max_tokens: int, fields: dict[str, object]
    ) -> None:
        self.rig.submit(prefix[:length] + own, max_tokens=max_tokens, **fields)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.rig.scheduler.cancel(data.draw(st.sampled_from(self.live())), self.rig.now)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.rig.scheduler.stop(data.draw(st.sampled_from(self.live())), self.rig.now)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), tokens=st.integers(1, 5))
    def grant(self, data: st.DataObject, tokens: int) -> None:
        self.rig.scheduler.grant(data.draw(st.sampled_from(self.live())), tokens)

    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        self.rig.plan(data.draw(st.sampled_from(range(len(self.rig.devices)))))

    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(range(len(self.rig.devices))))
        if self.rig.plans[index]:
            self.results.append((index, self.rig.execute(index)))

    @rule()
    def reply(self) -> None:
        if self.results:
            index, result = self.results.pop(0)
            assert self.rig.complete(result, index)
            self.old.append((index, result))

    @rule()
    def step_everywhere(self) -> None:
        for index in range(len(self.rig.devices)):
            self.rig.plan(index)
            if self.rig.plans[index]:
                self.results.append((index, self.rig.execute(index)))
        while self.results:
            self.reply()

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def reply_again(self, data: st.DataObject) -> None:
        index, result = data.draw(st.sampled_from(self.old))
        assert not self.rig.complete(result, index)

    @precondition(lambda self: self.results)
    @rule()
    def reply_from_another_life(self) -> None:
        index, result = self.results[0]
        assert not self.rig.complete(replace(result, epoch=result.epoch + 1), index)

    @rule()
    def expire(self) -> None:
        self.rig.now += 5.0
        self.rig.scheduler.expire(self.rig.now)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.take()
        self.rig.scheduler.check()
        for number, tokens in self.rig.tokens.items():
            submit = self.rig.submits[number]
            assert tokens == self.rig.expected(number)[: len(tokens)]
            end = self.rig.ends.get(number)
            if isinstance(end, RequestFinished) and end.reason == "length" and not submit.warm:
                assert len(tokens) == submit.sampling.max_tokens
            if isinstance(end, RequestFailed):
                assert end.code in {"overloaded", "context_length_exceeded", "resume_expired"}

    def teardown(self) -> None:
        """Somebody always progresses: with credit for all, everyone ends."""
        if not hasattr(self, "rig"):
            return
        while self.results:
            self.reply()
        for number in self.live():
            self.rig.scheduler.grant(number, 100)
        self.rig.run()
        self.everything_is_accounted_for()
        self.rig.check_idle()

    def live(self) -> list[int]:
        return list(self.rig.scheduler.requests)


SchedulerMachine.TestCase.settings = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=NUM_EXAMPLES <= 500,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestScheduler = SchedulerMachine.TestCase
