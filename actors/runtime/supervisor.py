"""The child processes of a node: started (never forked), heard, stopped, reaped.

Policy is the node's: it hears of every child that ends without being asked to. Children are born with
SIGINT and SIGTERM blocked, then ignore them: a Ctrl-C on the terminal is the node's to act on.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog
from msgspec import Struct

from actors.runtime.channel import ChildReport, ParentEnd

STOP_TIMEOUT_S = 8.0
HANDED_SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = structlog.get_logger()


@dataclass(frozen=True)
class Death:
    """A child that ended without being asked to."""

    name: str
    returncode: int

    @property
    def reason(self) -> str:
        """How it ended, for a log."""
        if self.returncode < 0:
            return f"{self.name} was ended by {signal.Signals(-self.returncode).name}"
        return f"{self.name} ended with exit code {self.returncode}"


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    channel: ParentEnd
    ended: asyncio.Event


class Supervisor:
    """Async context manager; leaving it stops all children, the latest started first, and waits for their end."""

    def __init__(self, on_report: Callable[[str, ChildReport], None], on_death: Callable[[Death], None]) -> None:
        self._on_report = on_report
        self._on_death = on_death
        self._children: dict[str, _Child] = {}
        self._tasks = asyncio.TaskGroup()
        self._is_stopping = False
        self.stop_timeout_s = STOP_TIMEOUT_S
        """How long all of them may take to end."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop_all()
        await self._tasks.__aexit__(kind, error, traceback)

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each child by name."""
        return {name: child.process.pid for name, child in self._children.items()}

    async def start(
        self, name: str, spec: Struct, *, module: str, environment: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        """Start `python -m module name FD`, which reads `spec` from descriptor FD and inherits `descriptors`."""
        ours, theirs = socket.socketpair()
        with theirs, _blocked(HANDED_SIGNALS):
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - returns at once; our own module
                [sys.executable, "-m", module, name, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno(), *descriptors],
            )
        channel = await ParentEnd.open(ours)
        channel.send_spec(spec)
        child = self._children[name] = _Child(process, channel, asyncio.Event())
        self._tasks.create_task(self._listen(name, child), name=f"child-{name}")

    async def _listen(self, name: str, child: _Child) -> None:
        while (report := await child.channel.receive()) is not None:
            self._on_report(name, report)
        returncode = await asyncio.to_thread(child.process.wait)  # at once: its socket has closed
        child.channel.close()
        child.ended.set()
        if not self._is_stopping:
            self._on_death(Death(name, returncode))

    async def _stop_all(self) -> None:
        self._is_stopping = True
        try:
            async with asyncio.timeout(self.stop_timeout_s):
                for child in reversed(self._children.values()):
                    child.channel.ask_to_stop()
                    await child.ended.wait()
        except TimeoutError:
            log.warning("children did not stop in time and are killed", timeout_s=self.stop_timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End every child at once."""
        self._is_stopping = True
        for child in self._children.values():
            if not child.ended.is_set():
                child.process.kill()


@contextlib.contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
