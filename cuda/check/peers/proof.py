"""Peer-to-peer is proven, not asked: each pair of devices writes a pattern into the other's memory and reads it back.

Drivers report access that the fabric drops, or that works one way only. Every device's end is a process of its own with
a deadline, so that a hang is an answer too. Imports neither torch nor CuPy. Read `end` for what the ends do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from multiprocessing.connection import Connection
from typing import Any

from cuda.check.peers.ends import Command, Ends, Fitness, RefusedError, Speed, UnfitError

ANSWER_S, SUM_S = 10.0, 60.0

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
class Link:
    """What `source` can do to the memory of `target`."""

    source: str
    target: str
    fitness: Fitness
    detail: str = ""
    bandwidth: float = 0.0
    """Of writes, bytes a second; 0 if not ok."""
    latency_s: float = 0.0
    """Of one small write, its launch included."""

    @property
    def line(self) -> str:
        """In one line; if it is not ok, why, and how to mend it."""
        link = f"{self.source} to {self.target}"
        if self.fitness == "ok":
            return f"{link}: {self.bandwidth / 1e9:.1f} GB/s, a small write {self.latency_s * 1e6:.1f} us"
        mends = _MENDS_OF_GPUS if self.source.startswith("cuda") else _MENDS_OF_CPUS
        return f"{link}: {self.fitness} ({self.detail}): {mends[self.fitness]}"


def verdict(links: Sequence[Link]) -> str | None:
    """None if devices can use each other's memory; else the one line that says why they fall back."""
    unfit = [link for link in links if link.fitness != "ok"]
    if not unfit:
        return None
    more = f" (and {len(unfit) - 1} more)" if len(unfit) > 1 else ""
    return f"peer-to-peer is unfit, falling back: {unfit[0].line}{more}"


def serve(commands: "Connection[Any, Any]", device: str) -> None:
    """Be the end of `cuda:N`, `emu:N` or `cpu:N` until the other side hangs up."""
    from cuda.check.peers.end import serve_mover  # noqa: PLC0415 - NumPy, as all below, in the end's process only

    if device.startswith("cpu"):
        from cuda.check.peers.cpu import CpuMover  # noqa: PLC0415 - likewise

        serve_mover(commands, CpuMover)
    else:
        from cuda.check.peers.gpu import open_mover  # noqa: PLC0415 - imports torch

        serve_mover(commands, partial(open_mover, device))


def prove(
    devices: Sequence[str],
    *,
    serve: "Callable[[Connection[Any, Any], str], None]" = serve,
    answer_s: float = ANSWER_S,
) -> list[Link]:
    """Each ordered pair of `devices` (names; one may come twice: two processes on it).

    Takes some seconds, most of them for the start of the ends; at worst `START_S` for each, and `answer_s` a pair.

    Args:
        devices: Of one kind.
        serve: What an end's process runs.
        answer_s: How long an end may take for one command.
    """
    with Ends(devices, serve, answer_s) as ends:
        return [_prove_link(ends, *pair) for pair in permutations(range(len(devices)), 2)]


def prove_sum(
    devices: Sequence[str],
    *,
    serve: "Callable[[Connection[Any, Any], str], None]" = serve,
    answer_s: float = SUM_S,
) -> str | None:
    """None if the all-reduce of all `devices` together gives the right sums; else the line that says what it gave.

    Of devices that `prove` finds fit; arguments as there.
    """
    names, everyone = ",".join(devices), range(len(devices))
    with Ends(devices, serve, answer_s) as ends:
        try:
            ends.start(everyone)
            joins = [Command("join", rank, len(devices)) for rank in everyone]
            handles = tuple(ends.ask_all(everyone, joins))
            num_wrong = sum(ends.ask_all(everyone, [Command("sum", handles=handles)] * len(devices)))
        except UnfitError as error:
            return f"the all-reduce of {names}: {error.fitness} ({error}), falling back"
    return f"the all-reduce of {names} gives {num_wrong} wrong sums, falling back" if num_wrong else None


def _prove_link(ends: Ends, source: int, target: int) -> Link:
    names = ends.names[source], ends.names[target]
    try:
        ends.start((source, target))
        handles = ends.ask(source, Command("make")), ends.ask(target, Command("make", 1))
        try:
            ends.ask(source, Command("open", handles=handles))
        except RefusedError as error:
            link = Link(*names, "refused mapping", str(error))
        else:
            link = _prove_writes(ends, source, target)
        ends.ask(source, Command("free"))  # first of all its hold of the target's
        ends.ask(target, Command("free"))
    except UnfitError as error:
        ends.end_all((source, target))  # what they hold, and what they still will say, is not known
        return Link(*names, error.fitness, str(error))
    return link


def _prove_writes(ends: Ends, source: int, target: int) -> Link:
    """That what is written arrives, and can be read back; then how fast."""
    names, seed = (ends.names[source], ends.names[target]), 1 + source
    ends.ask(source, Command("write", pattern=seed))
    if num_wrong := ends.ask(target, Command("check", pattern=seed)):
        return Link(*names, "lost writes", f"{num_wrong} bytes did not arrive")
    if num_wrong := ends.ask(source, Command("read", pattern=seed)):
        return Link(*names, "lost writes", f"{num_wrong} bytes that did arrive are read back wrong")
    speed: Speed = ends.ask(source, Command("time"))
    return Link(*names, "ok", "", speed.bandwidth, speed.latency_s)
