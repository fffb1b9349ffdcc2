"""How long a step will take: a + b * decode rows + c * prefill tokens + d * KV tokens read, fitted to measured steps.

Recursive least squares with forgetting (Haykin, "Adaptive Filter Theory", ch. 13), so that it follows a machine whose
speed changes. Its users: the retry hint of refusals and the exported prediction error. No clock here.
"""

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

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return self.num_decode_rows + self.num_prefill_tokens


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
        return max(0.0, sum(w * x for w, x in zip(self._weights, _features(load), strict=True)))

    def observe(self, load: StepLoad, duration_s: float) -> None:
        """Learn from one measured step."""
        x = _features(load)
        px = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self._covariance]
        scale = FORGETTING + sum(p * v for p, v in zip(px, x, strict=True))
        gain = [p / scale for p in px]
        error = duration_s - sum(w * v for w, v in zip(self._weights, x, strict=True))
        self._weights = [w + g * error for w, g in zip(self._weights, gain, strict=True)]
        grow = (
            1.0 if max(self._covariance[i][i] for i in range(4)) > 1e6 else 1.0 / FORGETTING
        )  # no wind-up while steps are all alike
        self._covariance = [[(self._covariance[i][j] - gain[i] * px[j]) * grow for j in range(4)] for i in range(4)]
        self.num_steps += 1


def _features(load: StepLoad) -> tuple[float, float, float, float]:
    return 1.0, load.num_decode_rows, load.num_prefill_tokens, load.num_kv_tokens / KV_SCALE
