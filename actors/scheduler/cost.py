"""How long a step will take: a + b * decode rows + c * prefill tokens + d * KV tokens read, fitted to measured steps.

Recursive least squares with directional forgetting (Kulhavy and Karny, IFAC 1984): it follows a machine whose speed
changes, and forgets nothing about loads that the present steps do not have. Used for the exported prediction error. No
clock here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FORGETTING = 0.995
"""Weight that a measurement keeps with each later one: a memory of about 200 steps."""
KV_SCALE = 1024.0
"""Keeps the features within a few orders of magnitude of each other."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step is made of."""

    num_decode_rows: int
    num_prefill_tokens: int
    num_kv_tokens: int
    """Context that attention reads, summed over rows."""


class CostModel:
    """Predicts seconds; None until it has seen as many steps as it has parameters."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._weights = [0.0] * 4
        self._covariance = [[1e4 if i == j else 0.0 for j in range(4)] for i in range(4)]

    def predict(self, load: StepLoad) -> float | None:
        """Seconds of one step."""
        if self.num_steps <= len(self._weights):
            return None
        return max(0.0, _dot(self._weights, _features(load)))

    def observe(self, load: StepLoad, duration_s: float) -> None:
        """Learn from one measured step."""
        x = _features(load)
        px = [_dot(row, x) for row in self._covariance]
        excitation = _dot(px, x)
        error = duration_s - _dot(self._weights, x)
        self._weights = [w + p / (1 + excitation) * error for w, p in zip(self._weights, px, strict=True)]
        keep = FORGETTING - (1 - FORGETTING) / excitation
        factor = keep / (1 + keep * excitation)
        for row, p in zip(self._covariance, px, strict=True):
            scale = factor * p
            row[:] = [c - scale * q for c, q in zip(row, px, strict=True)]
        self.num_steps += 1


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


def _features(load: StepLoad) -> tuple[float, float, float, float]:
    return 1.0, load.num_decode_rows, load.num_prefill_tokens, load.num_kv_tokens / KV_SCALE
