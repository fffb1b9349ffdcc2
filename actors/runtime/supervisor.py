"""The child processes of a node: started (never forked), heard, stopped, reaped.

Policy is the node's: it hears of every child that ends without being asked to. Children are born with
SIGINT and SIGTERM blocked, then ignore them: a Ctrl-C on the terminal is the node's to act on. Their end of the line
between them and the node, and what is said on it, is in `actors.runtime.child`.
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

import msgspec
import structlog
from msgspec import Struct

from actors.runtime.child import HANDED_SIGNALS, ChildReport

STOP_TIMEOUT_S = 8.0

log = structlog.get_logger()
_report_decoder = msgspec.json.Decoder(ChildReport)


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
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Event

    async def receive(self) -> ChildReport | None:
        """Return the next report; None once the child has ended. Raises msgspec.DecodeError for no report."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return None
        return _report_decoder.decode(line) if line.endswith(b"\n") else None

    def ask_to_stop(self) -> None:
        """Let the child end in an orderly way."""
        if self.writer.can_write_eof() and not self.writer.is_closing():
            self.writer.write_eof()


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
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(msgspec.json.encode(spec) + b"\n")
        child = self._children[name] = _Child(process, reader, writer, asyncio.Event())
        self._tasks.create_task(self._listen(name, child), name=f"child-{name}")

    async def _listen(self, name: str, child: _Child) -> None:
        while (report := await child.receive()) is not None:
            self._on_report(name, report)
        returncode = await asyncio.to_thread(child.process.wait)  # at once: its socket has closed
        child.writer.close()
        child.ended.set()
        if not self._is_stopping:
            self._on_death(Death(name, returncode))

    async def _stop_all(self) -> None:
        self._is_stopping = True
        try:
            async with asyncio.timeout(self.stop_timeout_s):
                for child in reversed(self._children.values()):
                    child.ask_to_stop()
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
