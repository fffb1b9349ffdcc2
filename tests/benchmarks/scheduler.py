"""Costs of scheduling, and what continuous batching gains by it.

    python -m tests.benchmarks.scheduler [--beside FOLDER]

1. plan + apply of one step, 256 running, prefix cache on, against the number waiting and against context length
   (bar: 400 us a step, flat).
   With a checkout of nano-vllm in FOLDER, its schedule + postprocess of 256 running beside it (bar: 1.4 times).
2. Static against continuous batching on a simulated device whose step time is affine in its rows and tokens
   (PERFORMANCE section 3: 1.0x for constant lengths, 1.6x for uniform, 2.8x for exponential ones).

Times are this thread's processor time, so a busy machine disturbs them little. Checked before timed: every request of
the second part ends with exactly its number of tokens.
"""

import argparse
import importlib
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.scheduler import Scheduler
from protocol.messages import RequestFinished, Submit, TokensGenerated
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.step import SampledRow, StepPlan, StepResult

PAGE_SIZE = 16
BAR_US = 400
MODEL = ModelInfo(name="bench", folder="", vocab_size=50_000, max_model_len=65_536, eos_token_ids=(2,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="FOLDER", type=Path, help="a checkout of nano-vllm")
    folder: Path | None = parser.parse_args().beside
    if folder is not None:
        pairs = [(step_cost_us(num_waiting=1000, context=200)[0], nano_step_cost_us(folder, 200)) for _ in range(5)]
        ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"256 running, us a step: {ours:.0f}, nano-vllm {theirs:.0f}: x{ours / theirs:.2f}   bar x1.40")
    print("plan + apply, 256 running, prefix cache on, us a step (median, and p99):")
    base = 0.0
    for num_waiting in (0, 64, 1000, 4096):
        median, p99 = step_cost_us(num_waiting=num_waiting, context=200)
        base = base or median
        print(f"  {num_waiting:5d} waiting        {median:6.0f}  {p99:6.0f}   x{median / base:.2f}   bar {BAR_US}")
    base = 0.0
    for context in (1_000, 8_000, 32_000):
        median, p99 = step_cost_us(num_waiting=64, context=context, num_running=64)
        base = base or median
        print(f"  {context:5d} context (64 rows) {median:4.0f}  {p99:6.0f}   x{median / base:.2f}")
    print("continuous against static batching, 32 rows, output tokens a second by simulated time:")
    for name, length in LENGTHS.items():
        static, static_u = batching_rate("static", length)
        continuous, continuous_u = batching_rate("continuous", length)
        print(
            f"  {name:26s} static {static:6.0f} (U {static_u:.2f})  continuous {continuous:6.0f} (U {continuous_u:.2f})"
            f"  x{continuous / static:.2f}"
        )


def step_cost_us(*, num_waiting: int, context: int, num_running: int = 256) -> tuple[float, float]:
    """Median and p99 of planning one step and applying another, with all rows decoding."""
    config = SchedulerConfig(max_running=num_running, step_tokens=4096, max_waiting=8192, max_waiting_tokens=10**9)
    scheduler = Scheduler(config, MODEL, 1, lambda: 1)
    scheduler.add_group(0, 1, num_running * (context + 1024) // PAGE_SIZE + num_running + 64, PAGE_SIZE)
    rng = random.Random(0)
    for request in range(num_running + num_waiting):
        length = context if request < num_running else 64
        scheduler.submit(_submit(request, _prompt(rng, length), 1000), 0.0)
    in_flight: deque[StepPlan] = deque()
    times: list[float] = []
    now = 1.0
    while len(times) < 300:
        now += 0.01
        begin = time.thread_time()
        plan = scheduler.plan(0, now)
        if plan is None:
            result = _answer(in_flight.popleft())
            begin = time.thread_time()
            scheduler.complete(0, result, now)
            plan = scheduler.plan(0, now)
            if plan is not None and len(plan.rows) == num_running and not plan.starts:
                times.append((time.thread_time() - begin) * 1e6)
        scheduler.outbox.clear()
        if plan is not None:
            in_flight.append(plan)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


class Digest(bytearray):
    """Stands in for xxhash, which nano-vllm hashes whole pages with."""

    update = bytearray.extend

    def intdigest(self) -> int:
        return hash(bytes(self)) % 2**64


def nano_step_cost_us(folder: Path, context: int, num_running: int = 256) -> float:
    """Median of nano-vllm's schedule + postprocess, with all rows decoding. Its package is entered past its `LLM`."""
    for name, contents in (
        ("xxhash", {"xxh64": Digest}),
        ("nanovllm", {"__path__": [str(folder / "nanovllm")]}),
        ("nanovllm.config", {"Config": SimpleNamespace}),
    ):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
    engine = importlib.import_module("nanovllm.engine.scheduler")
    params = importlib.import_module("nanovllm.sampling_params").SamplingParams(max_tokens=1000, ignore_eos=True)
    config = SimpleNamespace(max_num_seqs=num_running, max_num_batched_tokens=4096, eos=2, kvcache_block_size=256)
    config.num_kvcache_blocks = num_running * (context + 1024) // 256 + num_running
    scheduler = engine.Scheduler(config)
    rng = random.Random(0)
    for _ in range(num_running):
        scheduler.add(engine.Sequence(_prompt(rng, context), params))
    times: list[float] = []
    while len(times) < 300:
        before = sum(len(sequence) for sequence in scheduler.running)
        begin = time.thread_time()
        sequences, is_prefill = scheduler.schedule()
        scheduler.postprocess(sequences, [5] * len(sequences), is_prefill)
        times += [] if is_prefill else [(time.thread_time() - begin) * 1e6]
        if not is_prefill and sum(len(sequence) for sequence in scheduler.running) != before + num_running:
            raise AssertionError("a row of nano-vllm's has not got its token")
    return statistics.median(times)


LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "constant 200": lambda _: 200,
    "uniform 100 to 1024": lambda rng: rng.randint(100, 1024),
    "exponential, mean 200": lambda rng: max(1, min(2000, round(rng.expovariate(1 / 200)))),
}


def batching_rate(batching: str, length: Callable[[random.Random], int]) -> tuple[float, float]:
    """Output tokens a second of simulated device time for 320 requests, 32 rows; and the batch utilization U."""
    config = SchedulerConfig(max_running=32, step_tokens=512, batching=batching, overlap=False)  # type: ignore[arg-type] # a literal
    scheduler = Scheduler(config, MODEL, 1, lambda: 1)
    scheduler.add_group(0, 1, 32 * 4096 // PAGE_SIZE, PAGE_SIZE)
    rng = random.Random(1)
    wanted = {request: length(rng) for request in range(320)}
    for request, max_tokens in wanted.items():
        scheduler.submit(_submit(request, _prompt(rng, 64), max_tokens), 0.0)
    seconds = 0.0
    while scheduler.requests:
        plan = scheduler.plan(0, seconds)
        if plan is None:
            raise AssertionError("requests live and nothing is planned")
        num_prefill = sum(row.count for row in plan.rows if row.count > 1)
        seconds += 0.008 + 20e-6 * len(plan.rows) + 30e-6 * num_prefill  # an 8B model on one GPU, roughly
        scheduler.complete(0, _answer(plan), seconds)
    _check_lengths(scheduler, wanted)
    stats = scheduler.group_stats[0]
    return sum(wanted.values()) / seconds, stats.num_useful_rows / stats.num_held_rows


def _check_lengths(scheduler: Scheduler, wanted: dict[int, int]) -> None:
    seen = dict.fromkeys(wanted, 0)
    for message in scheduler.outbox:
        if isinstance(message, TokensGenerated):
            for delta in message.deltas:
                seen[delta.request] += len(delta.tokens)
        elif isinstance(message, RequestFinished) and message.reason != "length":
            raise AssertionError(message)
    if seen != wanted:
        raise AssertionError("a request got another number of tokens than it asked for")


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(100, 50_000) for _ in range(length)]


def _submit(request: int, prompt: list[int], max_tokens: int) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1)
    return Submit(request=request, prompt_tokens=prompt, sampling=sampling, credit=1_000_000)


def _answer(plan: StepPlan) -> StepResult:
    """Everyone samples token 5; requests are told apart by number only, so no tokens are checked here."""
    by_slot = _SLOTS
    for start in plan.starts:
        by_slot[start.slot] = (start.request, start.incarnation)
    rows = [SampledRow(row.slot, *by_slot[row.slot], 5) for row in plan.rows if row.samples]
    return StepResult(plan.epoch, plan.step, rows, 0.01)


_SLOTS: dict[int, tuple[int, int]] = {}


if __name__ == "__main__":
    main()
