"""What a worker counts."""

from prometheus_client import CollectorRegistry, Gauge, Histogram

from actors.worker.config import WorkerConfig
from protocol.step import StepResult

DURATION_BUCKETS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
GAP_BUCKETS = (0.00001, 0.00003, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


class WorkerMetrics:
    """Step times of one device, in a registry of its own."""

    def __init__(self, config: WorkerConfig) -> None:
        self.registry = CollectorRegistry()
        shown = (
            self.registry if config.device_config.rank == 0 else None
        )  # ranks run in lockstep: one speaks for its group
        labels = {"model_name": config.model_name, "group": config.group}
        self._duration = Histogram(
            "tokenstage_step_duration_seconds",
            "Time the device spent on one step.",
            list(labels),
            buckets=DURATION_BUCKETS,
            registry=shown,
        ).labels(**labels)
        self._gap = Histogram(
            "tokenstage_step_gap_seconds",
            "Device idle between two steps while rows were running.",
            list(labels),
            buckets=GAP_BUCKETS,
            registry=shown,
        ).labels(**labels)
        Gauge(
            "tokenstage_worker_epoch",
            "Which life of this worker this is.",
            ["model_name", "worker"],
            registry=self.registry,
        ).labels(config.model_name, str(config.index)).set(config.epoch)

    def step_completed(self, result: StepResult) -> None:
        """Observe one step."""
        self._duration.observe(result.duration_s)
        self._gap.observe(result.gap_s)
