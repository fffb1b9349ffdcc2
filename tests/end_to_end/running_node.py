"""A real node for a test: real processes, real sockets, on 127.0.0.1 and a free port, ended by process id."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

READY_TIMEOUT_S = 120.0  # a cold start compiles the CPU kernels and converts the demo model


@dataclass(frozen=True)
class RunningNode:
    """A node that has said it is ready."""

    process: subprocess.Popen[bytes]
    url: str
    actors: dict[str, int]
    log: Path

    @property
    def http_url(self) -> str:
        """The same address for HTTP."""
        return self.url.replace("ws://", "http://", 1)

    def get(self, path: str) -> tuple[int, str]:
        """GET a page: (status, body); errors of HTTP are statuses, not exceptions."""
        try:
            with build_opener(ProxyHandler({})).open(f"{self.http_url}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Sum of one metric's samples (all labels)."""
        lines = self.get("/metrics")[1].splitlines()
        samples = [line for line in lines if line.split("{")[0].split(" ")[0] == f"tokenstage_{name}"]
        assert samples, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    async def becomes_idle(self, timeout_s: float = 20.0) -> None:
        """Nothing runs or waits, and every page is accounted for: free + cached = total."""
        async with asyncio.timeout(timeout_s):
            while self.metric("num_requests_running") + self.metric("num_requests_waiting") > 0:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
        assert self.metric("kv_pages_held") == 0
        assert self.metric("kv_pages_free") + self.metric("kv_pages_cached") == self.metric("kv_pages_total")

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, wait, exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def running_node(*flags: str, env: dict[str, str] | None = None) -> Iterator[RunningNode]:
    """`python -m actors.node --port 0 …flags`, ready; killed at the end if the test has not stopped it."""
    with TemporaryDirectory(prefix="tokenstage-test-") as folder:
        ready, log = Path(folder, "ready.json"), Path(folder, "node.log")
        command = [sys.executable, "-m", "actors.node", "--port", "0", "--ready-file", str(ready), *flags]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
            )
        try:
            facts = wait_ready(process, ready, log)
            yield RunningNode(process, facts["url"], facts["actors"], log)
        finally:
            end(process)


def wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Any:
    """Wait for the ready file; fails with the node's own words if it ends first."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not ready.exists():
        assert process.poll() is None, f"node ended with {process.returncode}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"node not ready in {READY_TIMEOUT_S} s:\n{log.read_text()}"
        time.sleep(0.02)
    return json.loads(ready.read_text())


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node that a failed test left running."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
