"""What is made while a node starts, in this order, and what is seen of it: the model's folder, socket, run directory.

A first start converts a .gguf and compiles the CPU's kernels, both at once, as each takes a core for seconds. The TCP
socket is bound before anything is loaded and handed down to the ingress. Progress is a bar on a terminal.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from actors.node.config import NodeConfig
from actors.node.settings import ConfigError
from cuda.models.files import check_files
from cuda.models.folder import DEMO, prepare_model, read_model_info
from cuda.models.spec import UnsupportedModel
from protocol.model_info import ModelInfo

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_INTERVAL_S = 2.0
COMPILE = "from cuda.cpu.kernels.program import compile_kernels; compile_kernels()"
BACKLOG = 1024
PREFIX = "tokenstage-run-"
MAX_TEMP_PATH = 72
SETTLED_S = 10.0
"""A folder in which nothing was made or removed for so long is locked, if its node lives."""
log = structlog.get_logger()


class KernelCompiler:
    """The CPU kernels, compiled in a process of its own: idle until `start`, ended when the block is left.

    Workers wait for it (`cuda.cpu.kernels.jit.one_compiler`) and find the kernels in the cache; if it fails, they
    compile for themselves and say what is wrong.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Begin to compile; once is enough."""
        if self._process is None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-c", COMPILE], stdin=quiet, stdout=quiet, stderr=quiet
            )


class LoadingDisplay:
    """A bar of the slowest part on a terminal, log lines now and then otherwise; nothing if all is done at once."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._done: dict[str, float] = {}
        self._bar: Progress | None = None
        self._next_line = time.monotonic() + LINE_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, part: str, fraction: float) -> None:
        """`part` has come this far, 0..1."""
        self._done[part] = fraction
        if sys.stderr.isatty():
            self._bar = self._bar or _open_bar(self._activity)
            self._bar.update(self._bar.task_ids[0], completed=min(self._done.values()))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            log.info(self._activity, part=part, percent=round(100 * fraction))


def _open_bar(activity: str) -> "Progress":
    """Of one line: a log line of a child takes its place for a moment."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and only for terminals
    from rich.progress import Progress  # noqa: PLC0415 - likewise

    progress = Progress(console=Console(stderr=True), transient=True)
    progress.add_task(activity, total=1.0)
    progress.start()
    return progress


def load_model(config: NodeConfig, compiler: KernelCompiler) -> ModelInfo:
    """Return what is known of the model from its folder (a .gguf is converted once). Raises ConfigError."""
    try:
        with LoadingDisplay("converting") as display:

            def progress(fraction: float) -> None:
                if any(device.startswith("cpu") for device in config.devices):
                    compiler.start()  # a first start: what comes next is likely not compiled either
                display.show("model", fraction)

            folder = prepare_model(config.model, progress)
        model = read_model_info(folder, _served_name(config), config.max_model_len)
        check_files(folder)
    except UnsupportedModel as error:
        raise ConfigError(f"--model: {error}") from None
    return model


def _served_name(config: NodeConfig) -> str:
    if config.served_model_name is not None:
        return config.served_model_name
    path = Path(config.model).resolve()
    return DEMO if config.model == DEMO else path.stem if path.suffix.lower() == ".gguf" else path.name


def open_listener(config: NodeConfig) -> socket.socket:
    """Bind and listen on the configured address. Raises ConfigError when that cannot be."""
    host, port = config.host, config.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"--host: {host} is no address of this machine: {error.strerror}; use 127.0.0.1") from None
    family, *_, address = found[0]
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        mend = "use another --port, or 0 for a free one"
        raise ConfigError(f"--port: cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; {mend}") from None


def url_of(config: NodeConfig, listener: socket.socket) -> str:
    """Return the address that clients of this machine connect to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    scheme = "wss" if config.ingress.ssl_certfile else "ws"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make the folder, where the path of a socket still fits into 108 bytes; it is gone after the block."""
    is_short = len(os.fsencode(tempfile.gettempdir())) <= MAX_TEMP_PATH
    parent = Path(tempfile.gettempdir() if is_short else "/tmp")  # noqa: S108 - the folder in it is 0700
    _remove_left_behind(parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as name, _locked(Path(name)):
        yield Path(name)


def _remove_left_behind(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.stat().st_mtime > time.time() - SETTLED_S:
                continue  # its node may be about to lock it
            with _locked(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its node lives, or it is another user's


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # children do not inherit it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
