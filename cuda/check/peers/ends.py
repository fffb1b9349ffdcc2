"""The processes in which devices prove what they can do to each other: one command at a time, each with a deadline.

Imports neither torch nor CuPy. Read `end` for the other side.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Self

from cuda.check.watched import Died, Process, Silent

Fitness = Literal["ok", "lost writes", "refused mapping", "hang", "failed"]
START_S = 120.0
"""For an end to be there: it loads torch, and its kernel may be compiled."""


@dataclass(frozen=True)
class Command:
    """What an end is to do: the first verbs prove memory, in this order, the two behind them sums."""

    verb: Literal["make", "open", "write", "check", "read", "time", "free", "join", "sum"]
    rank: int = 0
    world_size: int = 2
    handles: tuple[bytes, ...] = ()
    """Of all ranks' memory."""
    pattern: int = 0
    """Its seed."""


@dataclass(frozen=True)
class Failed:
    """An end's answer to a command that raised."""

    reason: str


@dataclass(frozen=True)
class Speed:
    """Of writes into a peer's memory."""

    bandwidth: float
    """Bytes a second."""
    latency_s: float
    """Of one small write, launch included."""


class UnfitError(Exception):
    """An end that refused a command, did not answer, or died."""

    def __init__(self, fitness: Fitness, detail: str) -> None:
        super().__init__(detail)
        self.fitness = fitness


class RefusedError(UnfitError):
    """An end that answered with its error, and is still there."""


class Ends:
    """A process for each device: started when it is first spoken to, and again after it was lost."""

    def __init__(self, devices: Sequence[str], serve: Callable[..., None], answer_s: float) -> None:
        self.names = devices
        self._serve = serve
        self._answer_s = answer_s
        self._running: dict[int, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all(range(len(self.names)))

    def start(self, indexes: Sequence[int]) -> None:
        """All at once: most of it is the import of torch."""
        fresh = [index for index in indexes if index not in self._running]
        for index in fresh:
            self._running[index] = Process(self._serve, self.names[index])
        for index in fresh:
            self._answer(index, START_S)

    def ask(self, index: int, command: Command) -> Any:  # noqa: ANN401 - answers differ by command
        """What the end answers. RefusedError, or another UnfitError and the end is lost."""
        return self.ask_all([index], [command])[0]

    def ask_all(self, indexes: Sequence[int], commands: Sequence[Command]) -> list[Any]:
        """What the ends answer, which may wait for each other. Errors as `ask`."""
        for index, command in zip(indexes, commands, strict=True):
            try:
                self._running[index].send(command)
            except Died as died:
                self._lose(index, died)
        return [self._answer(index, self._answer_s) for index in indexes]

    def end_all(self, indexes: Iterable[int]) -> None:
        """Kill those of them that run."""
        for index in indexes:
            if index in self._running:
                self._running.pop(index).end()

    def _answer(self, index: int, timeout_s: float) -> Any:  # noqa: ANN401 - as above
        try:
            answer = self._running[index].receive(timeout_s)
        except Silent:
            self.end_all([index])
            raise UnfitError("hang", f"{self.names[index]} did not answer within {timeout_s:g} s") from None
        except Died as died:
            self._lose(index, died)
        if isinstance(answer, Failed):
            raise RefusedError("failed", answer.reason)
        return answer

    def _lose(self, index: int, died: Died) -> NoReturn:
        self.end_all([index])
        raise UnfitError("failed", f"the process of {self.names[index]} {died.how}") from None
