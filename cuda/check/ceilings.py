"""What NVIDIA advertises of its data centre GPUs: memory bandwidth and dense bfloat16 products."""

from dataclasses import dataclass


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
