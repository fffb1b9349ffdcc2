"""The block of text that a benchmark prints."""

from collections.abc import Mapping
from typing import Any

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
