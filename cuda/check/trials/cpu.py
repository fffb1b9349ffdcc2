"""CPU devices tried out: some of the model's weights multiplied, and sums exchanged, by a thread for each device.

All devices work at the same time, because they share caches and memory, and keep to the cores that ranks keep to.
Kernels and the ranks' meetings are those of the device. No torch: it takes longer to import than this takes.
"""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cuda.check.timing import Meeting
from cuda.check.trials.trial import Pace, Trial, TrialResult, fit_link, moved_bytes
from cuda.collectives.membership import Membership
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.pack import Format, Packed, pack
from cuda.cpu.kernels.program import LINEAR, Program, compile_kernels
from cuda.cpu.kernels.tile import PANEL
from cuda.cpu.ranks import CpuRanks, Sums
from cuda.models.files import sample_rows
from cuda.models.kv import available_memory

SAMPLE_VALUES = 1 << 20
"""Of the matrix that is packed once; copies of it stand for the rest of the model."""
WORKING_SET_BYTES = 256 << 20
"""Of all devices together: more than the caches hold, if the model is."""
EXCHANGES = 256
"""In one run of a program."""
LARGE_BYTES = 256 << 10
"""Exchanged to see how fast the link is; what the caches hold, as the sums of a step are."""
PEER_TIMEOUT_S = 2.0
QUANTIZED: Mapping[str, Format] = {"int8": "int8", "int4": "int4"}


def measure_cpu(trial: Trial) -> TrialResult:
    """Time groups of each size. PeerTimeout if ranks do not find each other, UnsupportedModel as `sample_rows`."""
    compile_kernels()
    sample = pack(sample_rows(Path(trial.folder), SAMPLE_VALUES), _form(trial))
    meeting = Meeting(len(trial.devices))
    paces, *_same = meeting.run(lambda place: _Device(place, trial, sample, meeting).try_sizes())
    return TrialResult(paces, 2 if trial.dtype == "bfloat16" else 4, available_memory())


@dataclass
class _Device:
    """One thread's part."""

    place: int
    trial: Trial
    sample: Packed
    meeting: Meeting

    def __post_init__(self) -> None:
        self._copies: list[Packed] = []

    def try_sizes(self) -> tuple[Pace, ...]:
        return tuple(self._try_size(*each) for each in zip(self.trial.sizes, self.trial.values, strict=True))

    def _try_size(self, size: int, values: int) -> Pace:
        cores = self.trial.cores[self.place] if self.trial.cores else ()
        if size > 1 and cores:
            os.sched_setaffinity(0, cores)  # this thread, and those of the programs that it makes from now on
        value_s = self._compute(values)
        if size == 1:
            return Pace(size, value_s)
        return Pace(size, value_s, *self._exchange(size))

    def _compute(self, values: int) -> float:
        """Seconds a value of the slowest device, the weights being as many as a rank reads, or as the caches miss."""
        sample, trial = self.sample, self.trial
        sample_values = sample.num_columns * sample.num_inputs
        most = max(1, WORKING_SET_BYTES // len(trial.devices) // sample.num_bytes)
        count = min(most, -(-values // sample_values))
        while len(self._copies) < count:
            self._copies.append(_copied(sample))
        x, out = (
            aligned_zeros((trial.rows, -(-width // PANEL) * PANEL), np.float32)
            for width in (sample.num_inputs, sample.num_columns)
        )
        rows = np.array([trial.rows], np.int64)
        program = Program(trial.num_threads, 64)
        for weight in self._copies[:count]:
            program.record(
                LINEAR,
                [
                    address(rows), address(x), x.strides[0], *weight.addresses, weight.num_inputs, weight.num_panels,
                    0, address(out), out.strides[0],
                ],
            )  # fmt: skip
        seconds = self.meeting.least(self.place, program.run)
        program.close()
        return seconds / (count * sample_values)

    def _exchange(self, size: int) -> tuple[float, float]:
        """(Latency, bytes a second) of sums exchanged by all groups at once."""
        first = self.place // size * size
        row_bytes = self.trial.hidden_size * 4
        many = max(2, LARGE_BYTES // row_bytes)
        with closing(CpuRanks(Membership(self.place - first, size, PEER_TIMEOUT_S), many * row_bytes)) as ranks:
            ranks.open_peers(self.meeting.gather(self.place, ranks.export())[first : first + size])
            self.meeting.gather(self.place, None)  # all have opened
            ranks.seal()
            with closing(Sums(ranks, many, self.trial.hidden_size, EXCHANGES)) as exchanges:
                samples = []
                for rows in (1, many):
                    exchanges.rows[0] = rows
                    seconds = self.meeting.least(self.place, exchanges.run) / EXCHANGES
                    samples.append((moved_bytes(size, rows * row_bytes), seconds))
        return fit_link(*samples)


def _form(trial: Trial) -> Format:
    """As `cuda.cpu.weights` keeps the layers' matrices."""
    return QUANTIZED.get(trial.quantization, "bfloat16" if trial.dtype == "bfloat16" else "exact")


def _copied(packed: Packed) -> Packed:
    panels = aligned_zeros(packed.panels.shape, packed.panels.dtype)
    panels[:] = packed.panels
    if packed.scales is None:
        return replace(packed, panels=panels)
    scales = aligned_zeros(packed.scales.shape, packed.scales.dtype)
    scales[:] = packed.scales
    return replace(packed, panels=panels, scales=scales)
