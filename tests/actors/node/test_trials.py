"""The measuring process as the node sees it: it answers, fails in a line, or is ended."""

import sys

import msgspec
import pytest

from actors.node.trials import TrialError, run_trial
from cuda.check.trial import Pace, Trial, TrialResult

TRIAL = Trial(
    kind="cpu", devices=(0, 1), folder="/model", dtype="auto", quantization="none", rows=8, hidden_size=64,
    sizes=(1, 2), values=(10, 5),
)  # fmt: skip
RESULT = TrialResult((Pace(1, 1e-9), Pace(2, 2e-9, 1e-6, 1e9)), 4, 1000)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_result_comes_back() -> None:
    code = f"import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write({msgspec.msgpack.encode(RESULT)!r})"
    assert run_trial(TRIAL, command=python(code)) == RESULT


def test_what_is_to_be_measured_arrives() -> None:
    code = "import sys; sys.exit(sys.stdin.buffer.read().hex())"
    with pytest.raises(TrialError) as caught:
        run_trial(TRIAL, command=python(code))
    assert msgspec.msgpack.decode(bytes.fromhex(str(caught.value)), type=Trial) == TRIAL


def test_a_failure_is_told_by_its_last_line() -> None:
    with pytest.raises(TrialError, match=r"^ValueError: no such thing$"):
        run_trial(TRIAL, command=python("raise ValueError('no such thing')"))


def test_a_silent_death_is_told_by_its_code() -> None:
    with pytest.raises(TrialError, match="ended with -9"):
        run_trial(TRIAL, command=python("import os; os.kill(os.getpid(), 9)"))


def test_one_that_hangs_is_ended() -> None:
    with pytest.raises(TrialError, match="not done after"):
        run_trial(TRIAL, command=python("import signal; signal.pause()"), limit_s=0.2)
