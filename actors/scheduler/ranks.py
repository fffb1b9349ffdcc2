"""The ranks of one group as the scheduler hears them: their memory and pools gathered at the start, then every answer.

A step counts once all ranks have answered it with the same rows: it is applied once, with the slowest rank's time.
Answers of one rank come in the order of its plans, those of different ranks in any order. No clock here.
"""

from collections import deque

from actors.scheduler.group import GroupState
from protocol.errors import PartFailed
from protocol.messages import MemoryExported, OpenPeers, WorkerReady
from protocol.step import SampledRow, StepResult


class RanksDisagree(PartFailed):
    """Ranks that must compute the same have not: none of them can be trusted. Says what each has answered."""


class Ranks:
    """What has been heard of `num_ranks` workers that act as one."""

    def __init__(self, group: int, num_ranks: int) -> None:
        self._group = group
        self._exports: list[MemoryExported | None] = [None] * num_ranks
        self._pools: list[WorkerReady | None] = [None] * num_ranks
        self._answers: list[deque[StepResult]] = [deque() for _ in range(num_ranks)]
        """Of each rank: to the oldest steps in flight, while another rank's is missing."""
        self._waited_s = 0.0
        """For the answers to the oldest step that only some ranks have answered."""

    # ---- the start --------------------------------------------------------------------------------------------------

    def exported(self, rank: int, message: MemoryExported) -> OpenPeers | None:
        """Return what all ranks are told once each has exported in the same epoch."""
        self._exports[rank] = message
        exports = [export for export in self._exports if export is not None and export.epoch == message.epoch]
        if len(exports) < len(self._exports):
            return None
        return OpenPeers(message.epoch, [export.handle for export in exports])

    def loaded(self, rank: int, message: WorkerReady) -> WorkerReady | None:
        """Return the group's pool once all ranks are ready in the same epoch: the one with the fewest pages."""
        self._pools[rank] = message
        pools = [pool for pool in self._pools if pool is not None and pool.epoch == message.epoch]
        if len(pools) < len(self._pools):
            return None
        if len({pool.page_size for pool in pools}) > 1:
            raise AssertionError(f"ranks of group {self._group} differ in page size: {pools}")
        return min(pools, key=lambda pool: pool.num_pages)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def answered(self, rank: int, result: StepResult, group: GroupState) -> StepResult | None:
        """Return the group's answer if this completes it; None if another rank's is missing, or if `result` is stale.

        Raises RanksDisagree.
        """
        answers = self._answers[rank]
        in_flight = group.in_flight
        is_awaited = len(answers) < len(in_flight) and result.step == in_flight[len(answers)].step
        if result.epoch != group.epoch or not is_awaited:
            return None
        answers.append(result)
        if not all(self._answers):
            return None
        self._waited_s = 0.0
        results = [answers.popleft() for answers in self._answers]
        for other, answer in enumerate(results):
            if answer.rows != results[0].rows:
                difference = _difference(results[0].rows, other, answer.rows)
                raise RanksDisagree(f"group {self._group}, step {result.step}, {difference}")
        return max(results, key=lambda answer: answer.duration_s)

    def overdue(self, group: GroupState, elapsed_s: float, timeout_s: float) -> str | None:
        """Who has not answered a step `timeout_s` after another rank has, or None; asked again every `elapsed_s`."""
        if not any(self._answers):
            return None
        self._waited_s += elapsed_s
        if self._waited_s < timeout_s:
            return None
        missing = ", ".join(str(rank) for rank, answers in enumerate(self._answers) if not answers)
        step = group.in_flight[0].step
        return (
            f"group {self._group}: step {step} has no answer of rank {missing} {self._waited_s:.1f} s after another's"
        )


def _difference(rows: list[SampledRow], rank: int, others: list[SampledRow]) -> str:
    """The first one, in words for a log; the rows of rank 0 and those of `rank`."""
    for row, other in zip(rows, others, strict=False):
        if row == other:
            continue
        if row.token != other.token:
            return f"slot {row.slot}: rank 0 has token {row.token}, rank {rank} has token {other.token}"
        return f"slot {row.slot}: rank 0 has {row}, rank {rank} has {other}"
    return f"rank 0 has {len(rows)} rows, rank {rank} has {len(others)}"
