"""How fast a device copies and multiplies: the ceilings that kernels are measured against.

Times are the host's, of graphs that repeat the work until launching no longer counts, so that a GPU and the emulator
are measured by the same lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cuda.check.timing import LEAST_S, seconds_each, seconds_of
from cuda.kernels.backend import Backend, Graph

MOST_REPEATS = 4096
"""In a graph."""
HOST_CALLS = 7
"""Of which the best counts."""


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


def seconds_of_call(backend: Backend, variants: Sequence[Callable[[], object]], *, least_s: float = LEAST_S) -> float:
    """Seconds of one call: the best of three graphs of many, which take the `variants` in turns.

    Variants work on different memory where one's would stay in the cache. Each must have been called before.
    """

    def spent_on(count: int) -> float:
        graph = backend.capture(lambda: [variants[index % len(variants)]() for index in range(count)])
        graph.launch()  # the first takes longer
        return min(_launched(backend, graph) for _ in range(3))

    return seconds_each(spent_on, len(variants), MOST_REPEATS, least_s=least_s)


def _launched(backend: Backend, graph: Graph) -> float:
    def launch() -> None:
        graph.launch()
        backend.synchronize()

    backend.synchronize()
    return seconds_of(launch)


def copy_bandwidth(backend: Backend, num_bytes: int, *, least_s: float = LEAST_S) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source, target = backend.zeros((num_bytes,), torch.uint8), backend.empty((num_bytes,), torch.uint8)

    def copy() -> None:
        backend.copy(target, source)

    copy()
    return 2 * num_bytes / seconds_of_call(backend, [copy], least_s=least_s)


def gemm_flops(backend: Backend, dtype: torch.dtype, size: int, *, least_s: float = LEAST_S) -> float:
    """Floating point operations a second of the library's product of two square matrices."""
    x, weight, out = (backend.empty((size, size), dtype) for _ in range(3))
    x.normal_()  # zeros would take less power, and a GPU is as fast as its power allows
    weight.normal_()

    def multiply() -> None:
        backend.matmul(out, x, weight, None)

    multiply()
    return 2 * size**3 / seconds_of_call(backend, [multiply], least_s=least_s)


def host_copy_bandwidth(num_bytes: int) -> float:
    """Bytes a second that torch's copy on the CPU reads and writes."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    return 2 * num_bytes / min(seconds_of(lambda: target.copy_(source)) for _ in range(HOST_CALLS))


def host_gemm_flops(size: int) -> float:
    """Floating point operations a second of torch's product of two square float32 matrices on the CPU."""
    x, weight, out = torch.randn(size, size), torch.randn(size, size), torch.zeros(size, size)
    return 2 * size**3 / min(seconds_of(lambda: torch.mm(x, weight, out=out)) for _ in range(HOST_CALLS))
