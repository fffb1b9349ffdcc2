"""From what happened to each request to the figures that users of the field's serving benchmarks know. Pure.

The figures have those benchmarks' keys, and `report` their lines.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from msgspec import Struct

REFUSALS = ("overloaded", "slo_unattainable", "draining")
PERCENTILES = (90, 99)
Goals = Mapping[str, float]
"""Goodput limits in milliseconds by name: ttft, tpot, e2el."""
_WIDTH = 50
_COUNTS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Refused requests:", "refused"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Goodput over offered requests:", "goodput_ratio"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
_LATENCIES = (
    ("Time to First Token", "TTFT", "ttft"),
    ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
    ("Inter-token Latency", "ITL", "itl"),
    ("End-to-end Latency", "E2EL", "e2el"),
)


class RequestRecord(Struct, kw_only=True):
    """What happened to one request; filled in while the answer arrives.

    `code` None is success; moments are seconds on one monotonic clock.
    """

    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    gaps_s: list[float] = []
    """Between output tokens after the first, as they arrived: tokens of one frame have a gap of 0 after its first."""
    input_tokens: int = 0
    output_tokens: int = 0
    code: str | None = None
    message: str = ""

    def tokens_arrived(self, count: int, now: float) -> None:
        """`count` more output tokens are here."""
        if self.first_at is None or self.last_at is None:
            self.first_at = now
        else:
            self.gaps_s.append(now - self.last_at)
        self.gaps_s.extend([0.0] * (count - 1))
        self.last_at = now

    def failed(self, code: str, message: str, now: float) -> None:
        """It ended without an answer."""
        self.code, self.message, self.ended_at = code, message, now

    @property
    def ttft_ms(self) -> float | None:
        """Sent to first output token."""
        return None if self.first_at is None else 1000 * (self.first_at - self.sent_at)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first, from the counts; None for fewer than two."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return 1000 * (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def e2el_ms(self) -> float | None:
        """Sent to end."""
        return None if self.ended_at is None else 1000 * (self.ended_at - self.sent_at)


def measure(records: Sequence[RequestRecord], *, duration_s: float, goals: Goals) -> dict[str, Any]:
    """All figures of one run. Percentiles interpolate linearly; a figure nobody has a sample for is 0."""
    done = [one for one in records if one.code is None]
    num_refused = sum(one.code in REFUSALS for one in records)
    input_tokens = sum(one.input_tokens for one in done)
    output_tokens = sum(one.output_tokens for one in done)
    num_good = sum(is_good(one, goals) for one in done)
    figures: dict[str, Any] = {
        "offered": len(records),
        "completed": len(done),
        "refused": num_refused,
        "failed": len(records) - len(done) - num_refused,
        "duration": duration_s,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "request_goodput": num_good / duration_s if goals else None,
        "goodput_ratio": num_good / len(records) if goals and records else None,
    }
    figures |= _spread("ttft", [one.ttft_ms for one in done if one.ttft_ms is not None])
    figures |= _spread("tpot", [one.tpot_ms for one in done if one.tpot_ms is not None])
    figures |= _spread("itl", [1000 * gap for one in done for gap in one.gaps_s])
    figures |= _spread("e2el", [one.e2el_ms for one in done if one.e2el_ms is not None])
    return figures


def is_good(record: RequestRecord, goals: Goals) -> bool:
    """It succeeded within every goal; a single token has no TPOT and so meets any."""
    measured = {"ttft": record.ttft_ms, "tpot": record.tpot_ms or 0.0, "e2el": record.e2el_ms}
    return record.code is None and all(
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


def report(figures: Mapping[str, Any]) -> str:
    """One line a figure; what was not asked for (None) is left out."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    lines += [_line(words, figures[key]) for words, key in _COUNTS if figures.get(key) is not None]
    for title, short, key in _LATENCIES:
        lines.append(title.center(_WIDTH, "-"))
        lines += [
            _line(f"{words} {short} (ms):", figures[f"{prefix}_{key}_ms"])
            for words, prefix in (("Mean", "mean"), ("Median", "median"), ("P90", "p90"), ("P99", "p99"))
        ]
    lines.append("=" * _WIDTH)
    return "\n".join(lines)


def _line(words: str, value: float | str) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{words:<40} {shown:<10}".rstrip()
