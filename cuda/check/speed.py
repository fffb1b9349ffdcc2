"""How fast a device copies and multiplies: the ceilings that kernels are measured against.

Times are the host's, of graphs that repeat the work until launching no longer counts, so that a GPU and the emulator
are measured by the same lines.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cuda.kernels.backend import Backend

LEAST_S = 0.02
"""Of a measurement: a launch and the wait for its end take a thousandth of it."""
MOST_REPEATS = 4096


@dataclass(frozen=True)
class Ceiling:
    """Of one model: bytes a second, floating point operations a second."""

    bandwidth: float
    flops: float


_BY_NAME = {
    "A100-SXM4-80GB": Ceiling(2.039e12, 312e12),
    "A100 80GB": Ceiling(1.935e12, 312e12),
    "A100": Ceiling(1.555e12, 312e12),
    "L40S": Ceiling(0.864e12, 362e12),
    "H100 PCIe": Ceiling(2.0e12, 756e12),
    "H100 NVL": Ceiling(3.9e12, 835e12),
    "H100": Ceiling(3.35e12, 989e12),
    "H200": Ceiling(4.8e12, 989e12),
    "B200": Ceiling(8.0e12, 2250e12),
}


def ceiling_of(name: str) -> Ceiling | None:
    """By the driver's name of the GPU, such as "NVIDIA H200"; None for one that is not listed."""
    return next((ceiling for part, ceiling in _BY_NAME.items() if part in name), None)


def seconds_of(backend: Backend, variants: Sequence[Callable[[], object]], *, least_s: float = LEAST_S) -> float:
    """Seconds of one call: the best of three graphs of many, which take the `variants` in turns.

    Variants work on different memory where one's would stay in the cache. Each must have been called before.
    """
    repeats = len(variants)
    while True:
        graph = backend.capture(partial(_call, variants, repeats))
        graph.launch()  # the first takes longer
        spent = min(_launched(backend, graph.launch) for _ in range(3))
        if spent >= least_s or repeats >= MOST_REPEATS:
            return spent / repeats
        repeats = min(MOST_REPEATS, max(2 * repeats, int(1.2 * repeats * least_s / max(spent, 1e-6))))


def _call(variants: Sequence[Callable[[], object]], count: int) -> None:
    for index in range(count):
        variants[index % len(variants)]()


def _launched(backend: Backend, launch: Callable[[], None]) -> float:
    backend.synchronize()
    began = time.perf_counter()
    launch()
    backend.synchronize()
    return time.perf_counter() - began


def copy_bandwidth(backend: Backend, num_bytes: int, *, least_s: float = LEAST_S) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source, target = backend.zeros((num_bytes,), torch.uint8), backend.empty((num_bytes,), torch.uint8)

    def copy() -> None:
        backend.copy(target, source)

    copy()
    return 2 * num_bytes / seconds_of(backend, [copy], least_s=least_s)


def gemm_flops(backend: Backend, dtype: torch.dtype, size: int, *, least_s: float = LEAST_S) -> float:
    """Floating point operations a second of the library's product of two square matrices."""
    x, weight, out = (backend.empty((size, size), dtype) for _ in range(3))
    x.normal_()  # zeros would take less power, and a GPU is as fast as its power allows
    weight.normal_()

    def multiply() -> None:
        backend.matmul(out, x, weight, None)

    multiply()
    return 2 * size**3 / seconds_of(backend, [multiply], least_s=least_s)


def host_copy_bandwidth(num_bytes: int) -> float:
    """Bytes a second that torch's copy on the CPU reads and writes."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    return 2 * num_bytes / _host_seconds_of(lambda: target.copy_(source))


def host_gemm_flops(size: int) -> float:
    """Floating point operations a second of torch's product of two square float32 matrices on the CPU."""
    x, weight, out = torch.randn(size, size), torch.randn(size, size), torch.zeros(size, size)
    return 2 * size**3 / _host_seconds_of(lambda: torch.mm(x, weight, out=out))


def _host_seconds_of(run: Callable[[], object]) -> float:
    """The best of some calls."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
