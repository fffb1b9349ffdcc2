"""From outcomes to the figures that users of the field's serving benchmarks know, under the same keys. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from client.bench.outcome import Outcome

REFUSALS = ("overloaded", "slo_unattainable", "draining")
PERCENTILES = (90, 99)
Goals = Mapping[str, float]
"""Goodput limits in milliseconds by name: ttft, tpot, e2el."""


def measure(outcomes: Sequence[Outcome], *, duration_s: float, goals: Goals) -> dict[str, Any]:
    """All figures of one run. Percentiles interpolate linearly; a figure nobody has a sample for is 0."""
    done = [one for one in outcomes if one.code is None]
    num_refused = sum(one.code in REFUSALS for one in outcomes)
    input_tokens = sum(one.input_tokens for one in done)
    output_tokens = sum(one.output_tokens for one in done)
    num_good = sum(is_good(one, goals) for one in done)
    figures: dict[str, Any] = {
        "offered": len(outcomes),
        "completed": len(done),
        "refused": num_refused,
        "failed": len(outcomes) - len(done) - num_refused,
        "duration": duration_s,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "request_goodput": num_good / duration_s if goals else None,
        "goodput_ratio": num_good / len(outcomes) if goals and outcomes else None,
    }
    figures |= _spread("ttft", [one.ttft_ms for one in done if one.ttft_ms is not None])
    figures |= _spread("tpot", [one.tpot_ms for one in done if one.tpot_ms is not None])
    figures |= _spread("itl", [1000 * gap for one in done for gap in one.gaps_s])
    figures |= _spread("e2el", [one.e2el_ms for one in done if one.e2el_ms is not None])
    return figures


def is_good(outcome: Outcome, goals: Goals) -> bool:
    """It succeeded within every goal; a single token has no TPOT and so meets any."""
    measured = {"ttft": outcome.ttft_ms, "tpot": outcome.tpot_ms or 0.0, "e2el": outcome.e2el_ms}
    return outcome.code is None and all(
        (value := measured[name]) is not None and value <= limit for name, limit in goals.items()
    )


def _spread(name: str, samples: list[float]) -> dict[str, float]:
    values = sorted(samples) or [0.0]
    figures = {
        f"mean_{name}_ms": fmean(values),
        f"median_{name}_ms": median(values),
        f"std_{name}_ms": pstdev(values),
    }
    return figures | {f"p{percent}_{name}_ms": percentile(values, percent) for percent in PERCENTILES}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, linear between the two nearest."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
