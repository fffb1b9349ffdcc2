"""What the GPU benchmark measures against: sizes, the machine's own ceilings, and one figure's form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda.check.speed import copy_bandwidth, gemm_flops, seconds_of_call
from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.backends.gpu import GpuBackend
from cuda.kernels.backend import Backend

Figure = dict[str, Any]
Report = Callable[[Figure], None]


@dataclass(frozen=True)
class Scale:
    """Where, and how large: a Llama of 8B, or next to nothing so that the emulator shows that all of it runs."""

    device: str
    columns: int = 4096
    features: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128_256
    layers: int = 32
    rows: tuple[int, ...] = (1, 8, 64)
    chunk: int = 2048
    contexts: tuple[int, ...] = (1024, 8192)
    steps: int = 48
    spread_bytes: int = 512 << 20
    """Variants of a kernel's data are that large together, or the cache would serve them."""
    copied_bytes: int = 1 << 30
    gemm_size: int = 8192
    least_s: float = 0.02

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @classmethod
    def small(cls, device: str) -> "Scale":
        return cls(
            device, columns=128, features=192, heads=2, kv_heads=1, head_dim=64, vocab=384, layers=2, rows=(1, 3),
            chunk=20, contexts=(40,), steps=4, spread_bytes=0, copied_bytes=1 << 12, gemm_size=64, least_s=0.001,
        )  # fmt: skip

    def open(self, number: int = 0) -> Backend:
        return GpuBackend(number) if self.is_gpu else EmulatedBackend(Settings(device=number))


@dataclass(frozen=True)
class Ceilings:
    """Measured on the machine: bytes a second of a copy, and FLOP/s of the library's large products."""

    bandwidth: float
    flops: dict[str, float]

    def figure(self, what: str, seconds: float, num_bytes: float, flops: float = 0, dtype: str = "bfloat16") -> Figure:
        """Beside the least time that the bytes and the operations take at these ceilings."""
        floor = max(num_bytes / self.bandwidth, flops / self.flops[dtype])
        rates = {"GB/s": round(num_bytes / seconds / 1e9, 2)} | (
            {"TFLOP/s": round(flops / seconds / 1e12, 3)} if flops else {}
        )
        return {"what": what, "us": round(seconds * 1e6, 3), **rates, "of_limit": round(floor / seconds, 4)}


def measure_ceilings(report: Report, scale: Scale) -> None:
    """One figure, from which `Ceilings` are made."""
    backend = scale.open()
    flops = {
        str(dtype).removeprefix("torch."): gemm_flops(backend, dtype, scale.gemm_size, least_s=scale.least_s)
        for dtype in (torch.bfloat16, torch.float32)
    }
    bandwidth = copy_bandwidth(backend, scale.copied_bytes, least_s=scale.least_s)
    report({"what": "ceilings", "bandwidth": bandwidth, "flops": flops})


@dataclass(frozen=True)
class Bench:
    """Measures calls on one backend."""

    backend: Backend
    scale: Scale
    ceilings: Ceilings
    report: Report

    def measure(
        self, what: str, make: Callable[[], Callable[[], object]], num_bytes: int, flops: float = 0, **more: float
    ) -> None:
        """Report what a call that `make` makes takes; each one has data of its own, of `num_bytes` read and written."""
        count = max(1, min(64, -(-self.scale.spread_bytes // num_bytes)))
        try:
            variants: Sequence[Callable[[], object]] = [make() for _ in range(count)]
            for variant in variants:
                variant()
            seconds = seconds_of_call(self.backend, variants, least_s=self.scale.least_s)
        except (RuntimeError, ValueError, TypeError) as error:  # the next one may do better
            self.report({"what": what, "error": f"{type(error).__name__}: {error}"})
        else:
            self.report(self.ceilings.figure(what, seconds, num_bytes, flops) | more)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return self.backend.empty(shape, dtype).normal_()

    def ints(self, values: Any) -> torch.Tensor:
        """On the device."""
        source = torch.as_tensor(values, dtype=torch.int32)
        target = self.backend.empty(source.shape, torch.int32)
        self.backend.copy(target, source)
        self.backend.synchronize()
        return target
