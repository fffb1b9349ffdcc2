"""The step time that `--tp auto` predicts for groups of CPU ranks beside the one that they have.

    python -m tests.benchmarks.tp_plan [--model demo] [--context 150] [--rounds 7] [--realtime]

Two devices on a core each: as two replicas of one rank, which run at the same time, and as one group of two ranks. The
prediction is the node's own, measured in a process of its own; the steps are those of `cpu_tp`, of as many rows as are
predicted, and their tokens are compared first. Attention and the draw are in the steps and not in the prediction.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from actors.node.config import resolve
from actors.node.grouping import compare
from actors.node.prediction import ROWS, Candidate
from cuda.devices.device import DeviceConfig
from cuda.models.folder import prepare_model, read_model_info
from tests.benchmarks.cpu_tp import STEPS, Ranks


class Replicas(Ranks):
    """Groups of one rank, on a core each."""

    def __init__(self, config: DeviceConfig, number: int, options: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._ends, self._processes = [], []
        for core in cores[:number]:
            os.sched_setaffinity(0, {core})  # what is started from here has no other
            replica = Ranks(config, 1, options)
            self._ends += replica._ends
            self._processes += replica._processes
        os.sched_setaffinity(0, cores)


def step_ms(ranks: list[Any]) -> float:
    """Of a round: the median of its steps, each as long as its slowest rank."""
    return 1e3 * float(statistics.median(max(step) for step in zip(*(seconds for seconds, _ in ranks), strict=True)))


def predict(model: str, *, realtime: bool) -> dict[int, Candidate]:
    """What the node would predict now, by size."""
    config = resolve(["--model", model, "--devices", "cpu:0,cpu:1"], {}).config
    info = read_model_info(prepare_model(model), model, None)
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    plan = compare(config, info)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return {candidate.size: candidate for candidate in plan.candidates}


def main(arguments: Sequence[str]) -> None:
    """Compare, time in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--context", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args(arguments, argparse.Namespace(rows=ROWS))
    config = DeviceConfig(
        folder=str(prepare_model(options.model)), dtype="float32", page_size=16,
        num_pages=ROWS * (options.context // 16 + 4), kv_memory=None, max_running=ROWS,
        max_model_len=options.context + STEPS + 2, max_step_tokens=1024, quantization="none", batch_invariant=False,
        num_threads=1, peer_timeout_s=10.0,
    )  # fmt: skip
    groups = {1: Replicas(config, 2, options), 2: Ranks(config, 2, options)}
    if len({tuple(tokens) for group in groups.values() for _, tokens in group.ask("steps")}) > 1:
        sys.exit("two ranks do not draw what one draws")
    predicted: dict[int, list[Candidate]] = {size: [] for size in groups}
    measured: dict[int, list[float]] = {size: [] for size in groups}
    for _ in range(options.rounds):
        guesses = predict(options.model, realtime=options.realtime)
        for size, group in groups.items():
            predicted[size].append(guesses[size])
            measured[size].append(step_ms(group.ask("steps")))
    for group in groups.values():
        group.close()
    report(predicted, measured, options.context)


def report(predicted: dict[int, list[Candidate]], measured: dict[int, list[float]], context: int) -> None:
    """Print a row for each size, and what two ranks gain."""
    print(f"decode step of {ROWS} rows behind {context} tokens, ms: median (range)")
    print("| tp | compute | exchange | predicted | measured | predicted / measured |\n|---|---|---|---|---|---|")
    steps = {size: _ms(guess.step_s for guess in guesses) for size, guesses in predicted.items()}
    for size, guesses in predicted.items():
        compute, exchange = _ms(guess.compute_s for guess in guesses), _ms(guess.exchange_s for guess in guesses)
        columns = (compute, exchange, steps[size], measured[size], _ratios(steps[size], measured[size]))
        print(f"| {size} | {' | '.join(map(_with_range, columns))} |")
    gains = (_with_range(_ratios(times[2], times[1])) for times in (steps, measured))
    print("tp 2 / tp 1: predicted {}, measured {}".format(*gains))


def _ms(seconds: Iterable[float | None]) -> list[float]:
    return [1e3 * each for each in seconds if each is not None]


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def _with_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main(sys.argv[1:])
