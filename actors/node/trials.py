"""The devices tried out in a process of their own, which gets as long as it may take and not a moment more."""

import subprocess
import sys

import msgspec

from cuda.check.trial import LIMIT_S, Trial, TrialResult

COMMAND = (sys.executable, "-m", "cuda.check.trial")


class TrialError(Exception):
    """One line that says why nothing was measured."""


def run_trial(trial: Trial, *, command: tuple[str, ...] = COMMAND, limit_s: float = LIMIT_S) -> TrialResult:
    """Measure. TrialError if that cannot be done, or not in time."""
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and code
            command, input=msgspec.msgpack.encode(trial), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrialError(f"not done after {limit_s:g} s") from None
    if ended.returncode:
        words = ended.stderr.decode(errors="replace").strip().splitlines()
        raise TrialError(words[-1] if words else f"ended with {ended.returncode}")
    return msgspec.msgpack.decode(ended.stdout, type=TrialResult)
