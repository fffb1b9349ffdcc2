"""Other ways of planning, which exist to be compared with: `--batching static` and `--no-chunked-prefill`.

They get all that the engine has besides: paged KV, prefix cache, overlap, tokens streamed at once. Read `step` first.
"""

from collections.abc import Callable

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.group import Admission, GroupState
from actors.scheduler.request import Request
from actors.scheduler.step import Step, plan_step
from protocol.step import StepPlan

Planner = Callable[[GroupState, float], StepPlan | None]


def planner_of(config: SchedulerConfig) -> Planner:
    """How to plan the steps of all groups: chosen once."""
    if config.batching == "static":
        return StaticBatches(Step if config.chunked_prefill else WholePrompts).plan_step
    return plan_step if config.chunked_prefill else plan_whole_prompts


def plan_whole_prompts(group: GroupState, now: float) -> StepPlan | None:
    """The next step if no prompt is cut."""
    step = WholePrompts(group)
    step.admit_waiting(now)
    return step.finish(group.num_running)


class WholePrompts(Step):
    """Prompts in one piece, where they fit whole or alone. Who was let in and does not fit is first in the next."""

    def chunk(self, request: Request, missing: int) -> int:  # noqa: ARG002 - the other way looks at it
        """All or nothing."""
        return missing if missing <= self.budget or self.num_prefill_tokens == 0 else 0


class StaticBatches:
    """A batch is taken from those who wait, and nobody joins it until its longest member has ended.

    Rows that have ended cost no compute. Only their slots stay held, which `batch_utilization` shows.
    """

    def __init__(self, kind: type[Step]) -> None:
        self._kind = kind
        self._num_members: dict[int, int] = {}
        """Of each group's present batch."""

    def plan_step(self, group: GroupState, now: float) -> StepPlan | None:
        """The next step; prompts may take several. Nobody is held back for a prefix: all members begin at once."""
        step = self._kind(group)
        if group.num_running == 0:
            while group.free_slots and (request := group.queue.peek(now)):
                if group.admit(request, now) is not Admission.ADMITTED:
                    break
                step.starts.append(request.row_start())
                step.compute(request)
            self._num_members[group.index] = group.num_running
        return step.finish(self._num_members[group.index])
