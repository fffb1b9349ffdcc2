"""The gpu device: the decoder's forward pass as kernels on one stream, on a GPU or, kernel for kernel, in the emulator.

The host lays a step out in pinned memory, queues one copy, the pass (a captured graph if every row has one token), and
one copy back; it may do so while the step before still runs, for what that one draws stays on the device. Owns weights,
KV pool and slots. Read `loading` for what a step touches, `batch` for the host's work, `runner` for a pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cuda.devices.device import DeviceConfig, PoolInfo
from cuda.devices.rows import Drawn, Ints, passes
from cuda.gpu.batch import Extent, fill
from cuda.gpu.loading import RECORDED, Loaded, load_model, memory_for
from cuda.gpu.stages import Flight, Flights, Pass
from cuda.kernels.backend import Backend
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepResult, StepRow

LIBRARY_ROWS = 16
"""More than our GEMV takes."""
GREEDY = SamplingParams(max_tokens=1, temperature=0, seed=0)


class GpuDevice:
    """One rank's shard, or the whole model. See `cuda.devices.device.PipelinedDevice`."""

    def __init__(self, config: DeviceConfig, backend: Backend) -> None:
        self._config = config
        self._backend = backend
        self._flights = Flights()
        self._loaded: Loaded | None = None

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        """Compile, load and allocate; where there are no peers to open first, also `_begin`.

        UnsupportedModel if the model cannot be served or shared out so; PartFailed in one line if the memory does not
        suffice.
        """
        loaded = self._loaded = load_model(self._config, self._backend, lambda done: progress(0.95 * done))
        if loaded.ranks is None:
            self._begin(loaded)
        progress(1.0)
        return loaded.pool

    def export(self) -> bytes:
        """See `Device`."""
        ranks = self._running.ranks
        return b"" if ranks is None else ranks.export()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """See `Device`: the passes that all ranks run then show that all are there."""
        loaded = self._running
        if loaded.ranks is not None:
            loaded.ranks.open_peers(handles)
            self._begin(loaded)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; nothing else may be on its way. ValueError for a row whose pages do not hold it."""
        if len(self._flights):
            raise RuntimeError(f"step {plan.step} is executed while {len(self._flights)} are on their way")
        self.submit(plan)
        return self.wait()

    def submit(self, plan: StepPlan) -> float:
        """See `PipelinedDevice`. Waits only while all stages are in use. ValueError as `execute`."""
        loaded = self._running
        flight = Flight(plan)
        with self._naming_who_is_late():
            self._queue_starts(plan.starts, flight)
            updates = loaded.slots.new_pages(plan.rows)
            for rows in passes(plan.rows, loaded.pass_tokens):
                self._queue_pass(rows, updates, flight)
                updates = updates[:0]
        self._flights.add(flight)
        return flight.idle_s

    def poll(self) -> StepResult | None:
        """See `PipelinedDevice`. PeerTimeout if a rank stays away."""
        with self._naming_who_is_late():
            return self._flights.poll()

    def wait(self) -> StepResult:
        """See `PipelinedDevice`. IndexError if nothing is on its way; PeerTimeout if a rank stays away."""
        with self._naming_who_is_late():
            return self._flights.wait()

    def close(self) -> None:
        """Let go of all memory and of the stream."""
        if self._loaded is not None and self._loaded.ranks is not None:
            self._loaded.ranks.close()
        self._loaded = None
        self._backend.close()

    @property
    def _running(self) -> Loaded:
        if self._loaded is None:
            raise RuntimeError("the device is not loaded")
        return self._loaded

    def _queue_starts(self, starts: Sequence[RowStart], flight: Flight) -> None:
        """Tokens of all rows that start, through as few stages as hold them."""
        if not starts:
            return
        self._flights.begin(flight)
        stages, slots = self._running.stages, self._running.slots
        stage, end = stages.take(), 0
        for start in starts:
            begin, end = end, end + len(start.tokens)
            if end > len(stage.start_tokens):
                Pass(stage, self._backend.record())
                stage, begin, end = stages.take(), 0, len(start.tokens)
            slots.start(start, stage.start_tokens[begin:end])
        Pass(stage, self._backend.record())

    def _queue_pass(self, rows: Sequence[StepRow], updates: Ints, flight: Flight) -> None:
        loaded = self._running
        room = loaded.max_updates
        while len(updates) > room:
            self._queue_updates(updates[:room], flight)
            updates = updates[room:]
        stage = loaded.stages.take()
        stage.batch.updates[: len(updates)] = updates
        extent = fill(stage.batch, rows, loaded.kernels.attention.planner)
        self._flights.begin(flight)
        loaded.runner.queue(stage, extent, len(updates))
        flight.passes.append(Pass(stage, self._backend.record(), self._drawn(extent)))

    def _queue_updates(self, updates: Ints, flight: Flight) -> None:
        stage = self._running.stages.take()
        stage.batch.updates[: len(updates)] = updates
        self._flights.begin(flight)
        self._running.runner.queue_updates(stage, len(updates))
        Pass(stage, self._backend.record())

    def _drawn(self, extent: Extent) -> list[Drawn]:
        holder = self._running.slots.rows.holder
        return [
            Drawn(row.slot, holder(row.slot), place) for row, place in zip(extent.sampling, extent.places, strict=True)
        ]

    @contextmanager
    def _naming_who_is_late(self) -> Iterator[None]:
        """What failed on the device may be that a rank did not come."""
        try:
            yield
        except RuntimeError:
            ranks = self._running.ranks
            if ranks is not None:
                ranks.check(self._flights.oldest_step)
            raise

    def _begin(self, loaded: Loaded) -> None:
        """Run some passes once and capture the decode passes. PartFailed if there is no memory for that."""
        with memory_for(*RECORDED):
            self._warm_up()
            loaded.runner.capture()

    def _warm_up(self) -> None:
        """Run what will be captured, few rows and more: kernels and libraries set themselves up at a first call."""
        for num_rows in (1, min(LIBRARY_ROWS, self._config.max_running, self._running.pool.num_pages)):
            starts = [RowStart(slot, 0, 0, [0], 1, GREEDY) for slot in range(num_rows)]
            rows = [StepRow(slot, 0, 1, samples=True, new_pages=(slot,)) for slot in range(num_rows)]
            self.execute(StepPlan(0, 0, starts, rows))
