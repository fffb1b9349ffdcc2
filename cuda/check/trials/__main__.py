"""The process that tries out devices.

    python -m cuda.check.trials        reads a Trial from standard input, writes a TrialResult to standard output

A process of its own, because it opens devices and must let go of all of them, and because a driver may hang: an alarm
ends it then.
"""

import signal
import sys

import msgspec

from cuda.check.trials.trial import LIMIT_S, Trial, TrialResult


def main() -> None:
    """Be the process."""
    signal.alarm(LIMIT_S)
    trial = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Trial)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_measured(trial)))


def _measured(trial: Trial) -> TrialResult:
    if trial.kind == "cpu":
        from cuda.check.trials.cpu import measure_cpu  # noqa: PLC0415 - only what these devices need is imported

        return measure_cpu(trial)
    from cuda.check.trials.gpu import measure_gpus  # noqa: PLC0415 - likewise

    return measure_gpus(trial)


if __name__ == "__main__":
    main()
