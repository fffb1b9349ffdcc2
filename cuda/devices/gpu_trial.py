"""GPUs tried out: weights multiplied by a few rows, and memory of one read by the next, as a step and its sums do.

Everything is captured and replayed, so that the host's pace does not count. The same in the emulator, whose times say
nothing. Read `trial` for what is made of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from cuda.backends.backend import Backend, Graph
from cuda.collectives.shared_memory import new_name
from cuda.devices.trial import Pace, Trial, TrialResult, fit_link
from cuda.models.checkpoint import stored_dtype

WORKING_SET_BYTES = 512 << 20
"""Ten times what caches hold."""
MATRIX_ROWS = 8192
SMALL_BYTES, LARGE_BYTES = 4 << 10, 8 << 20
COPIES = 32
RUNS = 5


def measure_gpus(trial: Trial) -> TrialResult:
    """Time all GPUs. MissingPart if one cannot be used."""
    from cuda.backends.gpu import GpuBackend  # noqa: PLC0415 - imports CuPy, which only machines with a GPU have

    return measure_backends(trial, [GpuBackend(index) for index in trial.devices])


def measure_backends(trial: Trial, backends: Sequence[Backend], working_set: int = WORKING_SET_BYTES) -> TrialResult:
    """Time the devices of all `backends`, which are closed then."""
    dtype = stored_dtype(Path(trial.folder)) if trial.dtype == "auto" else getattr(torch, trial.dtype)
    with ExitStack() as stack:
        for backend in backends:
            stack.callback(backend.close)
        free_bytes = min(backend.free_bytes() for backend in backends)
        value_s = max(_compute(trial, backend, dtype, min(working_set, free_bytes // 4)) for backend in backends)
        paces = tuple(_pace(size, value_s, backends) for size in trial.sizes)
    return TrialResult(paces, dtype.itemsize, free_bytes)


def _pace(size: int, value_s: float, backends: Sequence[Backend]) -> Pace:
    if size == 1:
        return Pace(size, value_s)
    try:
        small, large = (_exchange(size, backends, num_bytes) for num_bytes in (SMALL_BYTES, LARGE_BYTES))
    except RuntimeError as error:  # `Sharing` has it so
        return Pace(size, value_s, hindrance=str(error))
    return Pace(size, value_s, *fit_link((SMALL_BYTES, small), (LARGE_BYTES, large)))


def _compute(trial: Trial, backend: Backend, dtype: torch.dtype, working_set: int) -> float:
    """Seconds for each weight."""
    matrix_bytes = MATRIX_ROWS * trial.hidden_size * dtype.itemsize
    weights = [
        backend.zeros((MATRIX_ROWS, trial.hidden_size), dtype) for _ in range(max(1, working_set // matrix_bytes))
    ]
    x = backend.zeros((trial.rows, trial.hidden_size), dtype)
    out = backend.empty((trial.rows, MATRIX_ROWS), dtype)

    def multiply() -> None:
        for weight in weights:
            backend.matmul(out, x, weight, None)

    return _seconds([backend], [multiply]) / (len(weights) * MATRIX_ROWS * trial.hidden_size)


def _exchange(size: int, backends: Sequence[Backend], num_bytes: int) -> float:
    """Seconds in which every device reads so much of the next one's of its group. RuntimeError if one cannot."""
    with ExitStack() as stack:
        addresses = []
        for backend in backends:
            addresses.append(backend.sharing.make(num_bytes, new_name()))
            stack.callback(backend.sharing.close, addresses[-1])
        reads = []
        for place, backend in enumerate(backends):
            peer = place // size * size + (place + 1) % size
            backend.sharing.reach(backends[peer].index)
            reads.append(_reading(backend, addresses[peer], num_bytes))
        return _seconds(backends, reads) / COPIES


def _reading(backend: Backend, address: int, num_bytes: int) -> Callable[[], None]:
    source, target = backend.over(address, num_bytes), backend.empty((num_bytes,), torch.uint8)

    def read() -> None:
        for _ in range(COPIES):
            backend.copy(target, source)

    return read


def _seconds(backends: Sequence[Backend], works: Sequence[Callable[[], None]]) -> float:
    """All devices' work at once: the run that was disturbed least."""
    graphs: list[Graph] = []
    for backend, work in zip(backends, works, strict=True):
        work()  # libraries set themselves up at a first call
        backend.synchronize()
        graphs.append(backend.capture(work))
    return min(_run(backends, graphs) for _ in range(RUNS))


def _run(backends: Sequence[Backend], graphs: Sequence[Graph]) -> float:
    began = time.perf_counter()
    for graph in graphs:
        graph.launch()
    for backend in backends:
        backend.synchronize()
    return time.perf_counter() - began
