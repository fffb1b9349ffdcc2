"""A scheduler and counting devices without actors: what is submitted is computed when the test says so."""

from collections import deque
from collections.abc import Sequence

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.group import GroupState
from actors.scheduler.request import Request
from actors.scheduler.scheduler import Scheduler
from cuda.devices.counting import CountingDevice, expected_output
from cuda.devices.device import DeviceConfig
from protocol.messages import (
    EngineReady,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    Submit,
    TokenDelta,
    TokensGenerated,
)
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.step import StepPlan, StepResult

VOCAB_SIZE = 1000
EOS = 3
SEED = 11


class Rig:
    """Checks, whenever answers are taken, that tokens come in order and every request ends once."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        num_groups: int = 1,
        vocab_size: int = VOCAB_SIZE,
        max_model_len: int = 10_000,
        eos: int = EOS,
    ) -> None:
        model = ModelInfo(name="m", folder="", vocab_size=vocab_size, max_model_len=max_model_len, eos_token_ids=(eos,))
        self.vocab_size = vocab_size
        self.eos = eos
        self.now = 0.0
        self.scheduler = Scheduler(config, model, num_groups, lambda: SEED)
        device_config = _device_config(config, num_pages, page_size)
        self.devices = [CountingDevice(device_config, vocab_size=vocab_size) for _ in range(num_groups)]
        self.plans: list[deque[StepPlan]] = [deque() for _ in range(num_groups)]
        self.submits: dict[int, Submit] = {}
        self.tokens: dict[int, list[int]] = {}
        self.accepted: set[int] = set()
        self.ends: dict[int, RequestFinished | RequestFailed] = {}
        self.max_model_len = 0
        for index, device in enumerate(self.devices):
            pool = device.load(lambda _: None)
            self.scheduler.add_group(index, 1, pool.num_pages, pool.page_size)
        self.take()

    @property
    def group(self) -> GroupState:
        return self.scheduler.groups[0]

    def submit(self, prompt: Sequence[int], *, max_tokens: int = 8, **fields: object) -> int:
        """Submit a request and return its number; sampling fields and Submit fields are told apart by name."""
        number = len(self.submits) + 1
        sampling = {name: value for name, value in fields.items() if name in SamplingParams.__struct_fields__}
        others = {name: value for name, value in fields.items() if name not in sampling}
        message = Submit(
            request=number,
            prompt_tokens=list(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type] # by name
            **others,  # type: ignore[arg-type] # by name
        )
        self.submits[number] = message
        self.tokens[number] = []
        self.scheduler.submit(message, self.now)
        self.take()
        return number

    def request(self, number: int) -> Request:
        return self.scheduler.requests[number]

    def plan(self, index: int = 0) -> StepPlan | None:
        """Plan one step and put it in flight."""
        plan = self.scheduler.plan(index, self.now)
        if plan is not None:
            self.plans[index].append(plan)
        return plan

    def execute(self, index: int = 0) -> StepResult:
        """Let the device compute the oldest step in flight; the scheduler is not told."""
        return self.devices[index].execute(self.plans[index].popleft())

    def complete(self, result: StepResult, index: int = 0) -> bool:
        self.now += 1.0
        applied = self.scheduler.complete(index, result, self.now)
        self.take()
        return applied

    def step(self, index: int = 0) -> StepPlan | None:
        """Plan one step; compute and apply the oldest in flight."""
        plan = self.plan(index)
        if self.plans[index]:
            self.complete(self.execute(index), index)
        return plan

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to compute; steps in flight are planned as far as the configuration allows."""
        for _ in range(max_steps):
            for index in range(len(self.devices)):
                while self.plan(index) is not None:
                    pass
            if not any(self.plans):
                return
            for index, plans in enumerate(self.plans):
                if plans:
                    self.complete(self.execute(index), index)
        raise AssertionError(f"still working after {max_steps} steps")

    def take(self) -> None:
        """Take what the ingress would be told."""
        messages, self.scheduler.outbox = self.scheduler.outbox, []
        for message in messages:
            match message:
                case EngineReady(max_model_len):
                    self.max_model_len = max_model_len
                case RequestAccepted(request):
                    assert request not in self.accepted
                    self.accepted.add(request)
                case TokensGenerated(deltas):
                    for delta in deltas:
                        self._take(delta)
                case RequestFinished() | RequestFailed():
                    assert message.request not in self.ends
                    self.ends[message.request] = message

    def _take(self, delta: TokenDelta) -> None:
        assert delta.request in self.accepted
        assert delta.request not in self.ends
        tokens = self.tokens[delta.request]
        assert delta.index == len(self.submits[delta.request].output_tokens) + len(tokens)
        tokens += delta.tokens

    def expected(self, number: int) -> list[int]:
        """All new output tokens of a request if nobody stops it."""
        submit = self.submits[number]
        held = len(submit.output_tokens)
        tokens = expected_output(submit.prompt_tokens, submit.sampling.max_tokens, self.vocab_size)
        stop_ids = {*submit.sampling.stop_token_ids, *([] if submit.sampling.ignore_eos else [self.eos])}
        end = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), len(tokens))
        return tokens[held:end]

    def check_idle(self) -> None:
        """Everyone has ended and all pages are accounted for."""
        scheduler = self.scheduler
        scheduler.check()
        assert not scheduler.requests
        assert self.ends.keys() == self.submits.keys()
        for group in scheduler.groups.values():
            assert group.num_running == group.num_waiting == group.num_waiting_tokens == 0
            assert group.pool.num_held == 0


def make_config(**fields: object) -> SchedulerConfig:
    """Small, with invariants checked after each step."""
    defaults: dict[str, object] = {"max_running": 4, "step_tokens": 64, "check_invariants": True}
    return SchedulerConfig(**(defaults | fields))  # type: ignore[arg-type] # by name


def _device_config(config: SchedulerConfig, num_pages: int, page_size: int) -> DeviceConfig:
    limit = num_pages * page_size
    return DeviceConfig(
        folder="",
        dtype="auto",
        page_size=page_size,
        num_pages=num_pages,
        kv_memory=None,
        max_running=config.max_running,
        max_model_len=limit,
        max_step_tokens=config.step_tokens,
        quantization="none",
        batch_invariant=False,
        num_threads=1,
        peer_timeout_s=10.0,
    )
