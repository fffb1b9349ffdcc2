"""Peer-to-peer is proven, not asked: each pair of devices writes a pattern into the other's memory and reads it back.

Drivers report access that the fabric drops, or that works one way only. Every device's end is a process of its own with
a deadline, so that a hang is an answer too. Imports neither torch nor CuPy. Read `peer_end` for what the ends do.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn, Self

Outcome = Literal["ok", "lost writes", "refused mapping", "hang", "failed"]
START_S = 120.0
"""For an end to be there: it loads torch, and its kernel may be compiled."""
ANSWER_S = 10.0

_MENDS_OF_GPUS = {
    "lost writes": "an IOMMU or PCIe access control (ACS) swallows them; turn ACS off in the firmware or with setpci, "
    "and boot with iommu=pt or without an IOMMU",
    "refused mapping": "`nvidia-smi topo -p2p w` says what the driver allows; in a container, its processes must share "
    "the IPC namespace (--ipc=host)",
    "hang": "`dmesg` names the GPU's fault (Xid); an IOMMU or PCIe access control (ACS) may be in the way: turn it off",
    "failed": "`dmesg` and `nvidia-smi` say more",
}
_SHARED = "shared memory (/dev/shm) must be"
_MENDS_OF_CPUS = {
    "lost writes": f"{_SHARED} the same for all processes of this machine",
    "refused mapping": f"{_SHARED} writable, the same for both processes, and have room (a container: --shm-size)",
    "hang": "look for stopped processes, and for a machine that swaps",
    "failed": f"{_SHARED} writable and have room (a container: --shm-size)",
}


@dataclass(frozen=True)
class Command:
    """What an end is to do; `pattern` is a seed."""

    verb: Literal["make", "open", "write", "check", "read", "time", "let go", "free"]
    rank: int = 0
    handles: tuple[bytes, ...] = ()
    pattern: int = 0


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


@dataclass(frozen=True)
class Link:
    """What `source` can do to the memory of `target`."""

    source: str
    target: str
    outcome: Outcome
    detail: str = ""
    bandwidth: float = 0.0
    """Of writes, bytes a second; 0 if not ok."""
    latency_s: float = 0.0
    """Of one small write, its launch included."""

    @property
    def line(self) -> str:
        """In one line; if it is not ok, why, and how to mend it."""
        link = f"{self.source} to {self.target}"
        if self.outcome == "ok":
            return f"{link}: {self.bandwidth / 1e9:.1f} GB/s, a small write {self.latency_s * 1e6:.1f} us"
        mends = _MENDS_OF_GPUS if self.source.startswith("cuda") else _MENDS_OF_CPUS
        return f"{link}: {self.outcome} ({self.detail}): {mends[self.outcome]}"


def verdict(links: Sequence[Link]) -> str | None:
    """None if devices can use each other's memory; else the one line that says why they fall back."""
    unfit = [link for link in links if link.outcome != "ok"]
    if not unfit:
        return None
    more = f" (and {len(unfit) - 1} more)" if len(unfit) > 1 else ""
    return f"peer-to-peer is unfit, falling back: {unfit[0].line}{more}"


def prove(
    devices: Sequence[str],
    *,
    serve: "Callable[[Connection[Any, Any], str], None] | None" = None,
    answer_s: float = ANSWER_S,
) -> list[Link]:
    """Each ordered pair of `devices` (names; one may come twice: two processes on it).

    Takes some seconds, most of them for the start of the ends; at worst `START_S` for each, and `answer_s` a pair.

    Args:
        devices: Of one kind.
        serve: What an end's process runs, in the place of `peer_end.serve`.
        answer_s: How long an end may take for one command.
    """
    with _Ends(devices, serve or _serve, answer_s) as ends:
        return [_prove_link(ends, *pair) for pair in permutations(range(len(devices)), 2)]


def _prove_link(ends: "_Ends", source: int, target: int) -> Link:
    names = ends.names[source], ends.names[target]
    try:
        ends.start((source, target))
        handles = ends.ask(source, Command("make", 0)), ends.ask(target, Command("make", 1))
        try:
            ends.ask(source, Command("open", 0, handles))
        except _Refused as error:
            link = Link(*names, "refused mapping", str(error))
        else:
            link = _prove_writes(ends, source, target)
        ends.ask(source, Command("let go"))
        ends.ask(source, Command("free"))
        ends.ask(target, Command("free"))
    except _Gone as error:
        return Link(*names, error.outcome, str(error))
    except _Refused as error:
        ends.end_all((source, target))  # what they hold is not known
        return Link(*names, "failed", str(error))
    return link


def _prove_writes(ends: "_Ends", source: int, target: int) -> Link:
    """That what is written arrives, and can be read back; then how fast."""
    names, seed = (ends.names[source], ends.names[target]), 1 + source
    ends.ask(source, Command("write", pattern=seed))
    if num_wrong := ends.ask(target, Command("check", pattern=seed)):
        return Link(*names, "lost writes", f"{num_wrong} bytes did not arrive")
    if num_wrong := ends.ask(source, Command("read", pattern=seed)):
        return Link(*names, "lost writes", f"{num_wrong} bytes that did arrive are read back wrong")
    speed: Speed = ends.ask(source, Command("time"))
    return Link(*names, "ok", "", speed.bandwidth, speed.latency_s)


def _serve(commands: "Connection[Any, Any]", device: str) -> None:
    from cuda.collectives.peer_end import serve  # noqa: PLC0415 - imports torch, in the end's process only

    serve(commands, device)


class _Gone(Exception):  # noqa: N818 - the end is
    """An end that did not answer, or died."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class _Refused(Exception):  # noqa: N818 - a command is
    """An end that answered with its error."""


class _Ends:
    """A process for each device: started when it is first spoken to, and again after it was lost."""

    def __init__(self, devices: Sequence[str], serve: Callable[..., None], answer_s: float) -> None:
        self.names = devices
        self._serve = serve
        self._answer_s = answer_s
        self._running: dict[int, tuple[Connection[Any, Any], Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all(range(len(self.names)))

    def start(self, indexes: Sequence[int]) -> None:
        """All at once: most of it is the import of torch."""
        fresh = [index for index in indexes if index not in self._running]
        for index in fresh:
            self._spawn(index)
        for index in fresh:
            self._answer(index, START_S)

    def ask(self, index: int, command: Command) -> Any:  # noqa: ANN401 - answers differ by command
        """What the end answers. _Refused, or _Gone and the end is lost."""
        commands = self._running[index][0]
        try:
            commands.send(command)
        except OSError:
            self._died(index)
        return self._answer(index, self._answer_s)

    def end_all(self, indexes: Iterable[int]) -> None:
        """Kill those of them that run."""
        for index in indexes:
            if index in self._running:
                commands, process = self._running.pop(index)
                process.kill()
                process.join()
                commands.close()

    def _spawn(self, index: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=self._serve, args=(theirs, self.names[index]), daemon=True)
        process.start()
        theirs.close()
        self._running[index] = ours, process

    def _answer(self, index: int, timeout_s: float) -> Any:  # noqa: ANN401 - as above
        commands = self._running[index][0]
        if not commands.poll(timeout_s):
            self.end_all([index])
            raise _Gone("hang", f"{self.names[index]} did not answer within {timeout_s:g} s")
        try:
            answer = commands.recv()
        except (EOFError, OSError):
            self._died(index)
        if isinstance(answer, Failed):
            raise _Refused(answer.reason)
        return answer

    def _died(self, index: int) -> NoReturn:
        process = self._running[index][1]
        process.join()
        self.end_all([index])
        raise _Gone("failed", f"the process of {self.names[index]} ended with {process.exitcode}")
