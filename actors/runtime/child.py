"""What every child process does first and last: it hears what it is, leaves signals to the node, and dies with it.

The line to the node is a socket pair that speaks JSON, a line each: down goes one spec, up come reports. End of file
down means "stop" (the node asks for it, or is dead); end of file up means that the child has ended. The other end is in
`actors.runtime.supervisor`.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec
from msgspec import Struct

HANDED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1


class Report(Struct, frozen=True, tag=True):
    """Base of what a child says to the node."""


class Progressed(Report, frozen=True):
    """Loading has come this far, 0..1."""

    fraction: float


class Ready(Report, frozen=True):
    """The child can do its part: the ingress serves."""


ChildReport = Progressed | Ready


class NodeLine:
    """The child's end of the line to the node."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def receive_spec(self) -> bytes:
        """Block until the node has told what this child is. Raises EOFError when the node is gone."""
        with self._socket.makefile("rb") as lines:
            spec = lines.readline()
        if not spec.endswith(b"\n"):
            raise EOFError("the node has ended")
        return spec

    def report(self, report: ChildReport) -> None:
        """Tell the node; a node that is gone is noticed by `wait_stop`."""
        try:
            self._socket.send(msgspec.json.encode(report) + b"\n")
        except ConnectionError:
            return

    async def wait_stop(self) -> None:
        """Wait until the node asks to stop, or is gone."""
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_recv(self._socket, 1)


def leave_signals_to_node() -> None:
    """Ignore what a terminal sends to the whole process group; undo the block that the child was born with."""
    for handed in HANDED_SIGNALS:
        signal.signal(handed, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_SIGNALS)


def die_with(node_pid: int) -> None:
    """Let the kernel kill this process when the node's ends (Linux; elsewhere the line's end of file must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != node_pid:  # it died before the call
            os._exit(1)


def run(work: Coroutine[Any, Any, int], kind: Literal["uvloop", "asyncio"]) -> int:
    """Run `work` on a new event loop of that kind."""
    with asyncio.Runner(loop_factory=_loop_factory(kind)) as runner:
        return runner.run(work)


def _loop_factory(kind: Literal["uvloop", "asyncio"]) -> Callable[[], asyncio.AbstractEventLoop]:
    if kind == "asyncio":
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415 - not there on every platform

    return uvloop.new_event_loop
