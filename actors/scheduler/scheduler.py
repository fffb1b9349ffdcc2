"""The whole scheduler as plain state: messages and results in, plans and answers out. No await, no clock, no socket.

Every request that is accepted ends once, here. Answers to the ingress collect in `outbox`, in the order they happened.
Read `actor` for the shell around it, `intake` for what is let in, `step` for what is planned and applied.
"""

from collections.abc import Callable

from msgspec.structs import replace

from actors.scheduler.baselines import planner_of
from actors.scheduler.config import SchedulerConfig
from actors.scheduler.group import GroupState
from actors.scheduler.intake import AdmissionPace, check_submit, choose_group, make_request
from actors.scheduler.queue import TokenCounters
from actors.scheduler.request import Request, State
from actors.scheduler.stats import GroupStats, Stats
from actors.scheduler.step import apply_step
from protocol.errors import ErrorCode, RequestError
from protocol.messages import (
    EngineReady,
    FinishReason,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    Submit,
    TokensGenerated,
)
from protocol.model_info import ModelInfo
from protocol.step import StepPlan, StepResult

LONG_STEP_S = 0.02
PLANNING_LEAD = 0.25
"""Part of a long step that is left when the next one is planned: predictions err, and the device must not wait."""

ToIngress = EngineReady | RequestAccepted | TokensGenerated | RequestFinished | RequestFailed


class Scheduler:
    """Owns every live request and every page. Called by one actor only; times are seconds of one monotonic clock."""

    def __init__(self, config: SchedulerConfig, model: ModelInfo, num_groups: int, new_seed: Callable[[], int]) -> None:
        self.config = config
        self.model = model
        self.num_groups = num_groups
        self.groups: dict[int, GroupState] = {}
        self.requests: dict[int, Request] = {}
        self.paused: dict[int, Request] = {}
        """In the order they ran out of credit."""
        self.outbox: list[ToIngress] = []
        self.stats = Stats()
        self.group_stats: dict[int, GroupStats] = {}
        self.max_model_len = 0
        """0 until all groups are ready."""
        self._plan_step = planner_of(config)
        self._new_seed = new_seed
        self._counters = TokenCounters()
        self._pace = AdmissionPace()
        self._num_arrivals = 0

    # ---- groups -----------------------------------------------------------------------------------------------------

    def add_group(self, index: int, epoch: int, num_pages: int, page_size: int) -> None:
        """A group has loaded. When all have, the engine is ready and its true length limit is known."""
        if index in self.groups or not 0 <= index < self.num_groups:
            raise AssertionError(f"group {index} reports ready twice, or is not one of {self.num_groups}")
        self.groups[index] = GroupState(index, epoch, num_pages, page_size, self.config, self._counters)
        self.group_stats[index] = GroupStats()
        if len(self.groups) == self.num_groups:
            pools = [group.pool.num_pages * group.page_size for group in self.groups.values()]
            self.max_model_len = min(self.model.max_model_len, *pools)
            self.outbox.append(EngineReady(self.max_model_len))

    # ---- what the ingress asks --------------------------------------------------------------------------------------

    def submit(self, message: Submit, now: float) -> None:
        """Queue a request, or answer why not."""
        if message.request in self.requests:
            raise AssertionError(f"request {message.request} is submitted twice")
        try:
            request = self._take(message, now)
        except RequestError as error:
            self._refuse(message.request, error)
            return
        self.outbox.append(RequestAccepted(request.id))
        if request.num_resumed and request.tokens[-1] in request.stop_ids:
            self._finish(request, "stop", now, request.tokens[-1])
        elif len(request.tokens) >= request.max_length and not request.warm:
            self._finish(request, "length", now)
        elif len(request.tokens) >= request.stop_length and not request.warm:
            self._pause(request, now)
        else:
            self.groups[request.group].enqueue(request)

    def cancel(self, request_id: int, now: float) -> None:
        """The client wants no more of it."""
        if request := self.requests.get(request_id):
            self._finish(request, "cancelled", now)

    def stop(self, request_id: int, now: float) -> None:
        """The ingress has seen a stop string."""
        if request := self.requests.get(request_id):
            self._finish(request, "stop", now)

    def grant(self, request_id: int, num_tokens: int) -> None:
        """The client can take more; who had left the batch for lack of credit waits again, at its old place."""
        request = self.requests.get(request_id)
        if request is None or request.warm:
            return
        request.grant(num_tokens)
        if request.state is State.PAUSED:
            del self.paused[request.id]
            self.groups[request.group].enqueue(request)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def plan(self, index: int, now: float) -> StepPlan | None:
        """The next step of a group, None if it has nothing to do or enough in flight."""
        group = self.groups[index]
        if len(group.in_flight) >= group.max_in_flight:
            return None
        if not group.in_flight:
            group.progressed_at = now
        plan = self._plan_step(group, now)
        if plan is None:
            return None
        load = group.in_flight[-1].load
        self.group_stats[index].step_tokens = load.num_decode_rows + load.num_prefill_tokens
        if plan.starts:
            self._pace.admitted(len(plan.starts), now)
            self.stats.count_admitted([self.requests[start.request] for start in plan.starts])
        return plan

    def plan_due(self, index: int) -> float:
        """When the next step is best planned: whoever arrives before that is in it.

        At once while the device is idle; late in the running step if that one is long enough to predict its end.
        """
        group = self.groups[index]
        if not group.in_flight:
            return group.progressed_at
        predicted_s = group.cost.predict(group.in_flight[0].load)
        if predicted_s is None or predicted_s < LONG_STEP_S:
            return group.progressed_at
        return group.progressed_at + (1 - PLANNING_LEAD) * predicted_s

    def complete(self, index: int, result: StepResult, now: float) -> bool:
        """Apply what a group computed; False if it was stale."""
        group = self.groups.get(index)
        applied = apply_step(group, self.requests, result, now) if group else None
        if group is None or applied is None:
            return False
        group.progressed_at = now
        if applied.deltas:
            self.outbox.append(TokensGenerated(applied.deltas))
        self.stats.count_tokens(applied, now)
        self.group_stats[index].count_step(group.cost, applied, result)
        for request, reason, token in applied.ended:
            self._finish(request, reason, now, token)
        for request in applied.paused:
            self._pause(request, now)
        if self.config.check_invariants:
            self.check()
        return True

    # ---- time and endings -------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Fail what has been without credit for too long."""
        ttl_s = self.config.resume_ttl_s
        for request in list(self.paused.values()):
            if now - request.paused_at < ttl_s:
                break
            self._fail(request, "resume_expired", f"no credit was granted for {ttl_s:g} s")

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """End every live request."""
        for request in list(self.requests.values()):
            self._fail(request, code, message)

    @property
    def num_running(self) -> int:
        """Row slots taken, over all groups."""
        return sum(group.num_running for group in self.groups.values())

    @property
    def num_waiting(self) -> int:
        """Queued and held back; those without credit are not counted."""
        return sum(group.num_waiting for group in self.groups.values())

    def stuck_s(self, now: float) -> float:
        """How long the slowest group has not answered the step it is working on."""
        return max((now - group.progressed_at for group in self.groups.values() if group.in_flight), default=0.0)

    def check(self) -> None:
        """Stop the part unless pages, slots and requests are all accounted for."""
        for group in self.groups.values():
            group.check()
        counted = self.num_running + self.num_waiting + len(self.paused)
        if counted != len(self.requests):
            raise AssertionError(f"{len(self.requests)} requests live, {counted} run, wait or are paused")

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _take(self, message: Submit, now: float) -> Request:
        if not self.max_model_len:
            raise RequestError("overloaded", "the model is still loading", retry_after_ms=1000)
        check_submit(message, self.model, self.max_model_len)
        self._check_room(len(message.prompt_tokens) + len(message.output_tokens))
        account = self._counters.open(message.tenant)
        request = make_request(message, self.model, account, self._num_arrivals, now)
        if request.sampling.seed is None:
            request.sampling = replace(request.sampling, seed=self._new_seed())  # for its whole life
        choose_group(self.groups.values(), request)
        self._num_arrivals += 1
        self.requests[request.id] = request
        return request

    def _check_room(self, num_tokens: int) -> None:
        """Refuse what cannot be served now."""
        config, groups = self.config, self.groups.values()
        num_requests = max(sum(group.num_delayed for group in groups), len(self.paused))
        num_waiting = sum(group.num_waiting_tokens for group in groups)
        if num_requests >= config.max_waiting:
            reason = f"{num_requests} requests are waiting; limit is {config.max_waiting}"
        elif num_waiting and num_waiting + num_tokens > config.max_waiting_tokens:
            reason = (
                f"{num_waiting} tokens are waiting, this request has {num_tokens}; limit is {config.max_waiting_tokens}"
            )
        else:
            return
        excess = max(1, num_requests - config.max_waiting + 1)
        raise RequestError("overloaded", reason, retry_after_ms=self._pace.retry_after_ms(excess))

    def _refuse(self, request_id: int, error: RequestError) -> None:
        self.stats.failure[error.code] += 1
        self.outbox.append(RequestFailed(request_id, error.code, error.message, error.param, error.retry_after_ms))

    def _pause(self, request: Request, now: float) -> None:
        if request.state is State.RUNNING:
            self.groups[request.group].leave(request)
        request.state = State.PAUSED
        request.paused_at = now
        self.paused[request.id] = request

    def _finish(self, request: Request, reason: FinishReason, now: float, stop_token: int | None = None) -> None:
        self._end(request)
        timing = request.timing(now)
        self.stats.count_finished(request, reason, timing)
        self.outbox.append(RequestFinished(request.id, reason, request.usage(), timing, stop_token))

    def _fail(self, request: Request, code: ErrorCode, message: str) -> None:
        self._end(request)
        self.stats.failure[code] += 1
        self.outbox.append(RequestFailed(request.id, code, message))

    def _end(self, request: Request) -> None:
        group = self.groups[request.group]
        if request.state is State.RUNNING:
            group.leave(request)
        elif request.state is State.WAITING:
            group.discard(request)
        self.paused.pop(request.id, None)
        request.state = State.ENDED
        del self.requests[request.id]
        self._counters.close(request.account)
        if not self.requests:
            for idle in self.groups.values():
                idle.check_idle()
        if self.config.check_invariants:
            self.check()
