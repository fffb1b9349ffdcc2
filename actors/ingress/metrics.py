"""What the ingress itself counts, and many actors' metrics as one page of Prometheus text (format 0.0.4).

Counted here: sockets, and refusals made here. The scheduler counts the rest.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from actors.runtime.metrics import snapshot_of
from protocol.messages import MetricFamily, MetricsSnapshot, Sample


class IngressMetrics:
    """One registry of its own; names as in the public interface."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._model_name = model_name
        self._connections = Gauge(
            "tokenstage_ws_connections", "Open WebSocket connections.", ["model_name"], registry=self.registry
        ).labels(model_name)
        self._closes = Counter(
            "tokenstage_ws_close",
            "WebSocket connections closed, by close code.",
            ["model_name", "code"],
            registry=self.registry,
        )
        self._failures = Counter(
            "tokenstage_request_failure",
            "Requests that ended in `failed`, by code.",
            ["model_name", "code"],
            registry=self.registry,
        )

    def count_open(self) -> None:
        """A connection was opened."""
        self._connections.inc()

    def count_close(self, code: int) -> None:
        """A connection is gone."""
        self._connections.dec()
        self._closes.labels(self._model_name, str(code)).inc()

    def count_failure(self, code: str, number: int = 1) -> None:
        """Requests were refused or failed here; the scheduler counts those it fails."""
        self._failures.labels(self._model_name, code).inc(number)

    def snapshot(self) -> MetricsSnapshot:
        """All families."""
        return snapshot_of(self.registry)


_Key = tuple[str, frozenset[tuple[str, str]]]
EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def merge(snapshots: Iterable[MetricsSnapshot]) -> list[MetricFamily]:
    """One family for each name; samples of the same name and labels are added up."""
    families: dict[str, MetricFamily] = {}
    merged: dict[str, dict[_Key, Sample]] = {}
    for family in (family for snapshot in snapshots for family in snapshot.families):
        families.setdefault(family.name, family)
        samples = merged.setdefault(family.name, {})
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            known = samples.get(key)
            samples[key] = sample if known is None else Sample(known.name, known.labels, known.value + sample.value)
    return [
        MetricFamily(name, family.kind, family.help, list(merged[name].values()))
        for name, family in sorted(families.items())
    ]


def label(families: Iterable[MetricFamily], name: str, value: str) -> list[MetricFamily]:
    """The same families; samples without the label `name` have it with `value`."""
    return [
        MetricFamily(
            family.name,
            family.kind,
            family.help,
            [Sample(one.name, {name: value, **one.labels}, one.value) for one in family.samples],
        )
        for family in families
    ]


def render(families: Iterable[MetricFamily]) -> str:
    """The page; help and label values are escaped as the format asks."""
    lines: list[str] = []
    for family in families:
        name = family.name
        if family.kind == "counter" and not name.endswith("_total"):
            name += "_total"
        lines += [f"# HELP {name} {_escape(family.help)}", f"# TYPE {name} {family.kind}"]
        lines += [_line(sample) for sample in family.samples if not sample.name.endswith("_created")]
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_quote(value)}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else f"{sample.name} {_number(sample.value)}"


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quote(value: str) -> str:
    return _escape(value).replace('"', r"\"")
