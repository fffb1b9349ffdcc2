"""GPUs tried out by a thread for each: weights multiplied by a few rows, and sums exchanged as a step does.

Everything is captured and replayed, so that the host's pace hardly counts. The same in the emulator, whose times say
nothing. Read `trial` for what is made of it.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from cuda.check.timing import Meeting
from cuda.check.trials.trial import Pace, Trial, TrialResult, fit_link, moved_bytes
from cuda.collectives.membership import Membership
from cuda.collectives.peer_memory import PeerTimeout
from cuda.gpu.ranks import Exchanged, GpuRanks
from cuda.kernels.backend import Backend
from cuda.models.checkpoint import stored_dtype
from protocol.errors import PartFailed

WORKING_SET_BYTES = 512 << 20
"""Ten times what caches hold."""
MATRIX_ROWS = 8192
EXCHANGES = 32
"""In one graph."""
LARGE_BYTES = 256 << 10
"""Exchanged to see how fast the link is: about as much as a step's sums."""
PEER_TIMEOUT_S = 2.0


def measure_gpus(trial: Trial) -> TrialResult:
    """Time all GPUs. MissingPart if one cannot be used."""
    from cuda.gpu.backends.gpu import GpuBackend  # noqa: PLC0415 - imports CuPy, which only machines with a GPU have

    return measure_backends(trial, [GpuBackend(index) for index in trial.devices])


def measure_backends(trial: Trial, backends: Sequence[Backend], working_set: int = WORKING_SET_BYTES) -> TrialResult:
    """Time the devices of all `backends`, which are closed then."""
    dtype = stored_dtype(Path(trial.folder)) if trial.dtype == "auto" else getattr(torch, trial.dtype)
    meeting = Meeting(len(backends))

    def measure(place: int) -> tuple[int, tuple[Pace, ...]]:
        with closing(backends[place]) as backend:
            free_bytes = min(meeting.gather(place, backend.free_bytes()))
            device = _Device(place, backend, trial, dtype, meeting)
            return free_bytes, device.try_sizes(min(working_set, free_bytes // 4))

    (free_bytes, paces), *_same = meeting.run(measure)
    return TrialResult(paces, dtype.itemsize, free_bytes)


class PeersUnfitError(Exception):
    """Why these devices cannot sum through each other's memory."""


@dataclass
class _Device:
    """One thread's part."""

    place: int
    backend: Backend
    trial: Trial
    dtype: torch.dtype
    meeting: Meeting

    def try_sizes(self, working_set: int) -> tuple[Pace, ...]:
        value_s = self._compute(working_set)
        paces: list[Pace] = []
        for size in self.trial.sizes:
            hindrance = paces[-1].hindrance if paces else ""
            if size == 1 or hindrance:  # a GPU that has waited in vain is lost to this process
                paces.append(Pace(size, value_s, hindrance=hindrance))
                continue
            try:
                paces.append(Pace(size, value_s, *self._exchange(size)))
            except PeersUnfitError as error:
                paces.append(Pace(size, value_s, hindrance=str(error)))
        return tuple(paces)

    def _compute(self, working_set: int) -> float:
        """Seconds for each weight."""
        backend, width = self.backend, self.trial.hidden_size
        count = max(1, working_set // (MATRIX_ROWS * width * self.dtype.itemsize))
        weights = [backend.zeros((MATRIX_ROWS, width), self.dtype) for _ in range(count)]
        x = backend.zeros((self.trial.rows, width), self.dtype)
        out = backend.empty((self.trial.rows, MATRIX_ROWS), self.dtype)

        def multiply() -> None:
            for weight in weights:
                backend.matmul(out, x, weight, None)

        return self._least(multiply) / (count * MATRIX_ROWS * width)

    def _exchange(self, size: int) -> tuple[float, float]:
        """(Latency, bytes a second) of sums exchanged by all groups at once. PeersUnfitError on all devices alike."""
        first, width = self.place // size * size, self.trial.hidden_size
        row_bytes = width * self.dtype.itemsize
        many = max(2, LARGE_BYTES // row_bytes)
        member = Membership(self.place - first, size, PEER_TIMEOUT_S)
        try:
            ranks = GpuRanks(self.backend, member, Exchanged(self.dtype, many, width, eps=1e-5))
        except ValueError as error:  # all have the same numbers
            raise PeersUnfitError(str(error)) from error
        handles = self.meeting.gather(self.place, ranks.export())[first : first + size]
        out, residual = (self.backend.zeros((many, width), self.dtype) for _ in range(2))
        weight = self.backend.zeros((width,), self.dtype)

        def sum_rows(rows: int) -> None:
            for _ in range(EXCHANGES):
                ranks.all_reduce_add_rms_norm(out[:rows], residual[:rows], weight)

        hindrance: tuple[bool, str] | None = None
        try:
            ranks.open_peers(handles)
            sum_rows(many)
            self.backend.synchronize()
        except (PartFailed, RuntimeError) as error:
            hindrance = isinstance(error, PeerTimeout), str(error).partition("\n")[0]
        hindrances = [told for told in self.meeting.gather(self.place, hindrance) if told is not None]
        if hindrances:
            ranks.close()
            raise PeersUnfitError(min(hindrances)[1])  # rather than of one that waited, of one that could not come
        with closing(ranks):
            samples = [
                (moved_bytes(size, rows * row_bytes), self._least(partial(sum_rows, rows)) / EXCHANGES)
                for rows in (1, many)
            ]
        return fit_link(*samples)

    def _least(self, work: Callable[[], None]) -> float:
        """Seconds of a replay on all devices at once."""
        work()  # what is captured must have run
        self.backend.synchronize()
        graph = self.backend.capture(work)

        def replay() -> None:
            graph.launch()
            self.backend.synchronize()

        return self.meeting.least(self.place, replay)
