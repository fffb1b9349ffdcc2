"""GPU ranks that exchange many times, as layers do: kernels write the parts, and read sums and logits."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cuda.collectives.membership import Membership
from cuda.emulator import Settings
from cuda.gpu.backends.emulated import KERNELS, EmulatedBackend
from cuda.gpu.backends.gpu import GpuBackend
from cuda.gpu.ranks import Exchanged, GpuRanks, Thresholds
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.all_reduce import SOURCE
from cuda.kernels.backend import Backend, Launch
from cuda.kernels.gather import Gather

Floats = npt.NDArray[np.float32]
EPS = 1e-5
NUM_LOGIT_ROWS = 3
COLUMNS = (5, 20, 1, 6, 4, 7, 2, 3)
"""Of ranks 0 to 7; what is missing to whole vectors the last rank has."""
LATE_BYTES = 4 << 20
"""Copied by a rank that is to be late: a millisecond or so."""


@dataclass(frozen=True)
class Job:
    """What all ranks of a group do."""

    world_size: int
    rows: tuple[int, ...] = (1, 2, 3, 4, 5, 9)
    """Of each round in turn."""
    width: int = 40
    dtype: torch.dtype = torch.bfloat16
    rounds: int = 12
    """Of one run."""
    one_shot_rows: int = 2
    round_rows: int = 4
    settings: Settings = field(default_factory=Settings)
    num_blocks: int = 2
    sources: Path = KERNELS
    first_generation: int = 0
    late: bool = False
    """Ranks are late at random."""
    timeout_s: float = 20.0
    num_gpus: int = 0
    """Real ones, which the ranks share; none: the emulator."""

    def open(self, rank: int) -> Backend:
        """A backend for one rank, whose launches have `num_blocks` blocks."""
        if not self.num_gpus:
            return Planted(self, rank)
        backend = GpuBackend(rank % self.num_gpus)
        backend.num_multiprocessors = self.num_blocks
        return backend

    @property
    def exchanged(self) -> Exchanged:
        ends = [*accumulate(COLUMNS[: self.world_size - 1], initial=0)]
        total = -(-(ends[-1] + 3) // 4) * 4
        columns = tuple(range(*pair) for pair in pairwise([*ends, total]))
        return Exchanged(self.dtype, max(self.rows), self.width, EPS, NUM_LOGIT_ROWS, columns)

    @property
    def thresholds(self) -> Thresholds:
        few, one_round = (rows * self.exchanged.row_bytes for rows in (self.one_shot_rows, self.round_rows))
        return Thresholds(few, few, one_round)

    def rows_of(self, index: int) -> int:
        return self.rows[index % len(self.rows)]

    def start(self, rank: int) -> "Rank":
        return Rank(self, rank)


@dataclass(frozen=True)
class Inputs:
    """Of one rank in one run."""

    parts: torch.Tensor
    """[rounds, most rows, width]; magnitudes differ, so that another order of summing shows."""
    logits: torch.Tensor
    """[rounds, NUM_LOGIT_ROWS, own columns]."""

    @classmethod
    def of(cls, job: Job, rank: int, run: int) -> "Inputs":
        random = np.random.default_rng((rank, run))
        shape = (job.rounds, max(job.rows), job.width)
        parts = random.normal(size=shape) * 10.0 ** random.integers(-1, 2, shape)
        logits = random.normal(size=(job.rounds, NUM_LOGIT_ROWS, len(job.exchanged.vocabulary[rank])))
        return cls(torch.from_numpy(parts).to(job.dtype), torch.from_numpy(logits).float())


def expected(job: Job, run: int) -> Floats:
    """What every rank finds: sums in rank order, in float32, rounded once; the norm as `AddRmsNorm` has it."""
    backend = job.open(0)
    norm = AddRmsNorm(backend, job.dtype, job.width, EPS)
    inputs = [Inputs.of(job, rank, run) for rank in range(job.world_size)]
    residual, weight = starting_values(backend, job)
    found = []
    for index in range(job.rounds):
        num_rows = job.rows_of(index)
        total = inputs[0].parts[index, :num_rows].float().numpy().copy()
        for other in inputs[1:]:
            total += other.parts[index, :num_rows].float().numpy()
        sums = torch.from_numpy(total).to(job.dtype)
        if is_plain(index):
            found.append(sums)
        else:
            out = backend.empty(sums.shape, job.dtype)
            delta = on_device(backend, sums)
            norm(out, residual[:num_rows], delta, weight)
            backend.synchronize()
            found += [out.cpu(), residual[:num_rows].cpu().clone()]
        found += [torch.cat([each.logits[index] for each in inputs], 1)] * num_gathers(index)
    backend.close()
    return flat(found)


def is_plain(index: int) -> bool:
    """Whether a round's sum is wanted without the norm."""
    return index % 4 == 1


def num_gathers(index: int) -> int:
    """How often a round puts logits together: sums follow sums and logits logits, for what one leaves to the next."""
    return 2 if index % 3 == 2 else 0


def starting_values(backend: Backend, job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual before the first round, and the norm's weight."""
    random = np.random.default_rng(5)
    residual, weight = (
        torch.from_numpy(random.normal(size=shape)).to(job.dtype) for shape in ((max(job.rows), job.width), job.width)
    )
    return on_device(backend, residual), on_device(backend, weight)


def on_device(backend: Backend, values: torch.Tensor) -> torch.Tensor:
    tensor = backend.empty(values.shape, values.dtype)
    backend.copy(tensor, values)
    return tensor


def flat(tensors: Sequence[torch.Tensor]) -> Floats:
    return np.concatenate([tensor.float().cpu().numpy().ravel() for tensor in tensors])


class Planted(EmulatedBackend):
    """Takes the kernels that exchange from the job's folder, and all others from where they are."""

    def __init__(self, job: Job, rank: int) -> None:
        settings = Settings(job.settings.mode, job.settings.seed + rank, watchdog_s=60.0, device=rank)
        super().__init__(settings, num_multiprocessors=job.num_blocks)
        self._planted = job.sources

    def kernels(self, source: str, names: Sequence[str], *, cooperative: bool = False) -> tuple[Launch, ...]:
        self._sources = self._planted if source == SOURCE else KERNELS
        return super().kernels(source, names, cooperative=cooperative)


class Rank:
    """One rank of a job."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job, self._rank = job, rank
        self._backend = job.open(rank)
        exchanged = job.exchanged
        self.ranks = GpuRanks(
            self._backend,
            Membership(rank, job.world_size, job.timeout_s),
            exchanged,
            thresholds=job.thresholds,
            first_generation=job.first_generation,
        )
        self._copy_part = Gather(self._backend, job.dtype, job.width)
        self._copy_logits = Gather(self._backend, torch.float32, exchanged.num_columns)
        self._order = on_device(self._backend, torch.arange(max(*job.rows, NUM_LOGIT_ROWS), dtype=torch.int32))
        self._late = torch.zeros(2, LATE_BYTES, dtype=torch.uint8)
        self._random = np.random.default_rng(rank)

    def open_peers(self, handles: Sequence[bytes]) -> None:
        self.ranks.open_peers(handles)

    def run(self, run: int) -> Floats:
        """All that the rounds give."""
        inputs = Inputs.of(self._job, self._rank, run)
        parts, logits = on_device(self._backend, inputs.parts), on_device(self._backend, inputs.logits)
        residual, weight = starting_values(self._backend, self._job)
        found: list[torch.Tensor] = []
        for index in range(self._job.rounds):
            self._be_late()
            num_rows = self._job.rows_of(index)
            self._copy_part.take_rows(self.ranks.part(num_rows), parts[index], self._order[:num_rows])
            out = self._backend.empty((num_rows, self._job.width), self._job.dtype)
            found.append(out)
            if is_plain(index):
                self.ranks.sum(out)
            else:
                self.ranks.all_reduce_add_rms_norm(out, residual[:num_rows], weight)
                found.append(self._backend.empty(out.shape, out.dtype))
                self._backend.copy(found[-1], residual[:num_rows])
            self._be_late()
            for _ in range(num_gathers(index)):
                whole = self.ranks.gather_logits(logits[index])
                found.append(self._backend.empty(whole.shape, torch.float32))
                self._copy_logits.take_rows(found[-1], whole, self._order[:NUM_LOGIT_ROWS])
        try:
            self._backend.synchronize()
        except RuntimeError:
            self.ranks.check(run)
            raise
        return flat(found)

    def close(self) -> None:
        self.ranks.close()
        self._backend.close()

    def _be_late(self) -> None:
        if self._job.late and self._random.random() < 0.3:
            self._backend.copy(self._late[0], self._late[1])


def run_threads(job: Job, runs: int = 1) -> None:
    """All that the ranks find against what they should, bit by bit."""
    with ThreadPoolExecutor(job.world_size) as threads:
        ranks = list(threads.map(job.start, range(job.world_size)))
        handles = [rank.ranks.export() for rank in ranks]
        list(threads.map(lambda rank: rank.open_peers(handles), ranks))
        for run in range(runs):
            for found in threads.map(lambda rank, run=run: rank.run(run), ranks):
                np.testing.assert_array_equal(found.view(np.int32), expected(job, run).view(np.int32))
        list(threads.map(lambda rank: rank.close(), ranks))
