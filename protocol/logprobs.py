"""Log-probabilities that every encoding can carry: JSON has no infinity."""

import math

from msgspec.structs import replace

from protocol.wire import WireLogprob

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero."""


def finite_logprob(logprob: WireLogprob) -> WireLogprob:
    """The same entry, its infinities and NaNs replaced by LEAST_LOGPROB."""
    top = [replace(one, logprob=_finite(one.logprob)) for one in logprob.top]
    return replace(logprob, logprob=_finite(logprob.logprob), top=top)


def _finite(number: float) -> float:
    return number if math.isfinite(number) else LEAST_LOGPROB
