"""A rank in a process of its own: commands come pickled on standard input, answers go to standard output.

Run as `python -m tests.cuda.collectives.rank_process`; `RankProcess` is the other end.
"""

import os
import pickle
import subprocess
import sys
from select import select
from typing import TYPE_CHECKING, Any

from actors.runtime.child import die_with
from cuda.collectives.peer_memory import PeerTimeout
from cuda.emulator import KernelError
from tests.cuda.cpu.all_reduce import digest

if TYPE_CHECKING:  # a child imports what its job comes from: torch for GPU ranks only, which takes seconds
    from tests.cuda.cpu import all_reduce
    from tests.cuda.gpu import all_reduce as gpu_all_reduce

    Job = all_reduce.Job | gpu_all_reduce.Job
    Rank = all_reduce.Rank | gpu_all_reduce.Rank


class RankProcess:
    """A child that can be a rank of one job after another."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.cuda.collectives.rank_process", str(os.getpid())]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, *command: object) -> None:
        assert self._child.stdin is not None
        pickle.dump(command, self._child.stdin)
        self._child.stdin.flush()

    def receive(self) -> Any:
        assert self._child.stdout is not None
        return pickle.load(self._child.stdout)  # noqa: S301 - from our own child

    def has_answered(self, within_s: float) -> bool:
        """Whether `receive` would return at once, then or earlier."""
        assert self._child.stdout is not None
        return bool(select([self._child.stdout], [], [], within_s)[0])

    def close(self) -> None:
        with self._child:
            self._child.kill()


def open_group(processes: list[RankProcess], job: "Job") -> None:
    """Make the processes the ranks of a job."""
    for rank, process in enumerate(processes):
        process.send("make", job, rank)
    handles = [process.receive() for process in processes]
    for process in processes:
        process.send("open", handles)


def main() -> None:
    """Answer "make" with a handle, "run" with a digest, "run for ever" with two: the first run's, and the error."""
    die_with(int(sys.argv[1]))  # else ranks that run for ever outlive a test that was killed
    rank: Rank | None = None
    while True:
        command, *arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        if command == "make":
            if rank is not None:
                rank.close()
            job, number = arguments
            rank = job.start(number)
            answer(rank.ranks.export())
        elif rank is not None and command == "open":
            rank.open_peers(*arguments)
        elif rank is not None and command == "close":
            rank.close()
            rank = None
        elif rank is not None and command == "run":
            answer(digest(rank.run(*arguments)))
        elif rank is not None:
            run_for_ever(rank)


def run_for_ever(rank: "Rank") -> None:
    answer(digest(rank.run(0)))
    run = 1
    try:
        while True:
            rank.run(run)
            run += 1
    except (PeerTimeout, KernelError) as error:
        answer(str(error))


def answer(value: object) -> None:
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
