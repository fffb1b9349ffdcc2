"""What every child process does first and last: it ignores the signals that are the node's, and dies with the node."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from actors.runtime.supervisor import HANDED_SIGNALS

PR_SET_PDEATHSIG = 1


def leave_signals_to_node() -> None:
    """Ignore what a terminal sends to the whole process group; undo the block that the child was born with."""
    for handed in HANDED_SIGNALS:
        signal.signal(handed, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_SIGNALS)


def die_with(node_pid: int) -> None:
    """Let the kernel kill this process when the node's ends (Linux; elsewhere the channel's end of file must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != node_pid:  # it died before the call
            os._exit(1)


def loop_factory(kind: Literal["uvloop", "asyncio"]) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop of a process."""
    if kind == "asyncio":
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415 - not there on every platform

    return uvloop.new_event_loop


def run(work: Coroutine[Any, Any, int], kind: Literal["uvloop", "asyncio"]) -> int:
    """Run `work` on a new loop."""
    with asyncio.Runner(loop_factory=loop_factory(kind)) as runner:
        return runner.run(work)
