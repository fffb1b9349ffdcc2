"""What pages tell of the engine: what the ingress itself counts, what other actors count, whether all of them move.

Counted here: sockets, and refusals made here; the scheduler counts the rest. Many actors' metrics become one page of
Prometheus text (format 0.0.4).
"""

import asyncio
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from actors.runtime.metrics import snapshot_of
from actors.runtime.ref import ActorRef, ActorStopped
from protocol.messages import (
    CollectMetrics,
    GetHealth,
    Health,
    MetricFamily,
    MetricsSnapshot,
    Sample,
    SchedulerInbox,
    WorkerInbox,
)


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
HEALTH_TIMEOUT_S = 2.0
METRICS_TIMEOUT_S = 1.0
EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineProbe:
    """Asks the scheduler and the other actors (`peers`)."""

    def __init__(self, scheduler: ActorRef[SchedulerInbox], peers: Sequence[ActorRef[WorkerInbox]] = ()) -> None:
        self._scheduler = scheduler
        self._peers = peers

    async def health(self) -> Health:
        """The scheduler's own word; not ok when it or a worker is not well or does not answer in time."""
        actors: list[ActorRef[GetHealth]] = [self._scheduler, *self._peers]
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_health(ref)) for ref in actors]
        words = [answer.result() for answer in answers]
        return next((word for word in words if not word.ok), words[0])

    async def metrics(self) -> list[MetricsSnapshot]:
        """Of all that answer within a second; the others are left out."""
        actors: list[ActorRef[CollectMetrics]] = [self._scheduler, *self._peers]
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_collect(ref)) for ref in actors]
        return [snapshot for answer in answers if (snapshot := answer.result()) is not None]


async def _health(ref: ActorRef[GetHealth]) -> Health:
    try:
        answer: Health = await ref.ask(GetHealth(), timeout_s=HEALTH_TIMEOUT_S)
    except TimeoutError:
        return Health(ok=False, detail=f"{ref.name} has not answered for {HEALTH_TIMEOUT_S:g} s")
    except ActorStopped:
        return Health(ok=False, detail=f"{ref.name} has stopped")
    return answer


async def _collect(ref: ActorRef[CollectMetrics]) -> MetricsSnapshot | None:
    try:
        answer: MetricsSnapshot = await ref.ask(CollectMetrics(), timeout_s=METRICS_TIMEOUT_S)
    except (TimeoutError, ActorStopped):
        return None
    return answer


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
