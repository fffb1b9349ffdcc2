"""Log-probabilities that JSON cannot carry."""

import math

from protocol.wire import LEAST_LOGPROB, WireLogprob, WireTopLogprob, finite_logprob


def test_finite_values_stay_as_they_are() -> None:
    logprob = WireLogprob(token=1, logprob=-0.25, top=[WireTopLogprob(token=2, logprob=0.0, text="x")], text="y")
    assert finite_logprob(logprob) == logprob


def test_what_is_not_finite_becomes_the_least() -> None:
    top = [WireTopLogprob(token=2, logprob=math.nan)]
    logprob = finite_logprob(WireLogprob(token=1, logprob=-math.inf, top=top))
    assert logprob.logprob == LEAST_LOGPROB
    assert logprob.top[0].logprob == LEAST_LOGPROB
