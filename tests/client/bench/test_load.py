import asyncio

from client.bench.load import Load
from client.bench.metrics import measure
from client.bench.outcome import Outcome
from client.bench.requests import BenchRequest
from client.errors import BadRequestError, OverloadedError


class VirtualTime:
    """A clock that moves only when somebody sleeps; sleepers wake in order of their moments."""

    def __init__(self) -> None:
        self.now = 0.0
        self._num_slept = 0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._num_slept += 1
        self._sleepers.append((self.now + seconds, self._num_slept, woken))
        await woken.wait()

    async def run(self, done: asyncio.Event) -> None:
        while not done.is_set():
            for _ in range(20):  # let everyone run up to their next sleep
                await asyncio.sleep(0)
            if self._sleepers and not done.is_set():
                self._sleepers.sort()
                self.now, _, woken = self._sleepers.pop(0)
                woken.set()


def requests(count: int) -> list[BenchRequest]:
    return [BenchRequest(prompt_tokens=[number], max_tokens=4) for number in range(count)]


async def offer(load: Load, time: VirtualTime, count: int, moments: list[float]) -> list[Outcome]:
    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(time.run(done))
        outcomes = await load.offer(requests(count), moments)
        done.set()
    return outcomes


async def test_figures_of_a_server_with_known_timings_are_right() -> None:
    time = VirtualTime()

    async def ask(request: BenchRequest, outcome: Outcome) -> None:
        """0.2 s to the first token, then three tokens 0.1 s apart, of which the last two share a frame."""
        await time.sleep(0.2)
        outcome.tokens_arrived(1, time.clock())
        await time.sleep(0.1)
        outcome.tokens_arrived(1, time.clock())
        await time.sleep(0.2)
        outcome.tokens_arrived(2, time.clock())
        outcome.input_tokens, outcome.output_tokens = len(request.prompt_tokens), 4

    load = Load(ask, max_concurrency=None, clock=time.clock, sleep=time.sleep)
    outcomes = await offer(load, time, 3, [0.0, 0.05, 1.0])
    figures = measure(outcomes, duration_s=time.clock(), goals={"ttft": 200.001, "tpot": 99.0})
    assert round(figures["duration"], 6) == 1.5
    assert round(figures["mean_ttft_ms"], 6) == 200
    assert round(figures["p99_tpot_ms"], 6) == 100
    assert round(figures["mean_itl_ms"], 6) == 100  # gaps 100, 200, 0
    assert round(figures["median_e2el_ms"], 6) == 500
    assert round(figures["output_throughput"], 6) == 8
    assert figures["goodput_ratio"] == 0


async def test_no_more_than_max_concurrency_run_at_a_time_and_their_clocks_start_when_sent() -> None:
    time = VirtualTime()
    running, most = 0, 0

    async def ask(_request: BenchRequest, _outcome: Outcome) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await time.sleep(1.0)
        running -= 1

    load = Load(ask, max_concurrency=2, clock=time.clock, sleep=time.sleep)
    outcomes = await offer(load, time, 6, [0.0] * 6)
    assert most == 2
    assert [outcome.sent_at for outcome in outcomes] == [0, 0, 1, 1, 2, 2]
    assert {outcome.e2el_ms for outcome in outcomes} == {1000}


async def test_refusals_and_failures_are_outcomes_not_crashes() -> None:
    time = VirtualTime()

    async def ask(request: BenchRequest, _outcome: Outcome) -> None:
        if request.prompt_tokens == [1]:
            raise OverloadedError("full", code="overloaded")
        if request.prompt_tokens == [2]:
            raise BadRequestError("no", code="invalid_request")

    load = Load(ask, max_concurrency=None, clock=time.clock, sleep=time.sleep)
    outcomes = await load.offer(requests(3), [0.0] * 3)
    assert [outcome.code for outcome in outcomes] == [None, "overloaded", "invalid_request"]
