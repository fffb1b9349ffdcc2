import asyncio
import json
import math
from pathlib import Path

import pytest

from client.bench.load import BenchRequest, Lengths, Load, arrivals, make_requests, read_requests
from client.bench.metrics import RequestRecord, measure
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


async def offer(load: Load, time: VirtualTime, count: int, moments: list[float]) -> list[RequestRecord]:
    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(time.run(done))
        records = await load.offer(requests(count), moments)
        done.set()
    return records


async def test_figures_of_a_server_with_known_timings_are_right() -> None:
    time = VirtualTime()

    async def ask(request: BenchRequest, record: RequestRecord) -> None:
        """0.2 s to the first token, then three tokens 0.1 s apart, of which the last two share a frame."""
        await time.sleep(0.2)
        record.tokens_arrived(1, time.clock())
        await time.sleep(0.1)
        record.tokens_arrived(1, time.clock())
        await time.sleep(0.2)
        record.tokens_arrived(2, time.clock())
        record.input_tokens, record.output_tokens = len(request.prompt_tokens), 4

    load = Load(ask, max_concurrency=None, clock=time.clock, sleep=time.sleep)
    records = await offer(load, time, 3, [0.0, 0.05, 1.0])
    figures = measure(records, duration_s=time.clock(), goals={"ttft": 200.001, "tpot": 99.0})
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

    async def ask(_request: BenchRequest, _record: RequestRecord) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await time.sleep(1.0)
        running -= 1

    load = Load(ask, max_concurrency=2, clock=time.clock, sleep=time.sleep)
    records = await offer(load, time, 6, [0.0] * 6)
    assert most == 2
    assert [record.sent_at for record in records] == [0, 0, 1, 1, 2, 2]
    assert {record.e2el_ms for record in records} == {1000}


async def test_refusals_and_failures_are_outcomes_not_crashes() -> None:
    time = VirtualTime()

    async def ask(request: BenchRequest, _record: RequestRecord) -> None:
        if request.prompt_tokens == [1]:
            raise OverloadedError("full", code="overloaded")
        if request.prompt_tokens == [2]:
            raise BadRequestError("no", code="invalid_request")

    load = Load(ask, max_concurrency=None, clock=time.clock, sleep=time.sleep)
    records = await load.offer(requests(3), [0.0] * 3)
    assert [record.code for record in records] == [None, "overloaded", "invalid_request"]


def test_random_prompts_have_exactly_the_length_that_was_asked() -> None:
    requests = make_requests("random", Lengths(input_len=7, output_len=3), num_requests=5, vocab_size=2000, seed=0)
    assert {len(request.prompt_tokens) for request in requests} == {7}
    assert {request.max_tokens for request in requests} == {3}
    assert all(1000 <= token < 2000 for request in requests for token in request.prompt_tokens)
    assert len({tuple(request.prompt_tokens) for request in requests}) == 5
    assert all(len(request.text().split()) == 7 for request in requests)


def test_the_range_ratio_spreads_lengths_on_both_sides_of_the_mean() -> None:
    lengths = Lengths(input_len=100, output_len=10, range_ratio=0.5)
    requests = make_requests("random", lengths, num_requests=2000, vocab_size=100, seed=1)
    seen = [len(request.prompt_tokens) for request in requests]
    assert (min(seen), max(seen)) == (50, 150)
    assert sum(seen) / len(seen) == pytest.approx(100, rel=0.03)
    assert {request.max_tokens for request in requests} == set(range(5, 16))


def test_the_same_seed_asks_the_same_and_another_seed_asks_something_else() -> None:
    lengths = Lengths(input_len=8, output_len=8)
    first, again, other = (
        make_requests("random", lengths, num_requests=4, vocab_size=500, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_sharegpt_like_lengths_have_a_long_tail_around_their_mean() -> None:
    lengths = Lengths(input_len=160, output_len=340)
    requests = make_requests("sharegpt-like", lengths, num_requests=4000, vocab_size=100, seed=0)
    outputs = sorted(request.max_tokens for request in requests)
    assert outputs[0] >= 1
    assert outputs[-1] <= 8 * 340
    assert sum(outputs) / len(outputs) == pytest.approx(340, rel=0.08)
    assert outputs[len(outputs) // 2] < 240  # a lognormal's median is well below its mean


def test_a_poisson_rate_has_the_mean_gap_it_names_and_inf_has_none() -> None:
    moments = list(arrivals(5000, 20.0, seed=0))
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] / len(moments) == pytest.approx(1 / 20, rel=0.05)
    assert list(arrivals(3, math.inf, seed=0)) == [0, 0, 0]


def test_a_file_gives_prompts_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([{"prompt_tokens": [1, 2], "max_tokens": 4}]))
    (request,) = read_requests(file)
    assert (request.prompt_tokens, request.max_tokens) == ([1, 2], 4)
    file.write_text('[{"prompt_tokens": [1], "max_tokens": 0}]')
    with pytest.raises(BadRequestError, match="max_tokens"):
        read_requests(file)
    with pytest.raises(BadRequestError, match="missing"):
        read_requests(tmp_path / "missing.json")
