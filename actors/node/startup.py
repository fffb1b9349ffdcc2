"""What is seen while a node starts: the model's folder made ready, then the workers' progress."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import structlog

from actors.node import sharing
from actors.node.config import NodeConfig
from actors.node.first_start import KernelCompiler
from actors.node.settings import ConfigError
from cuda.devices.host import available_memory
from cuda.models.folder import DEMO, prepare_model, read_model_info, read_spec
from cuda.models.intact import check_files
from cuda.models.spec import ModelSpec, UnsupportedModel
from protocol.model_info import ModelInfo

LINE_INTERVAL_S = 2.0
log = structlog.get_logger()


def load_model(config: NodeConfig, compiler: KernelCompiler) -> ModelInfo:
    """Return what is known of the model from its folder (a .gguf is converted once). Raises ConfigError."""
    try:
        with LoadingDisplay("converting") as display:

            def progress(fraction: float) -> None:
                if _cpu_devices(config):
                    compiler.start()  # a first start: what comes next is likely not compiled either
                display.show("model", fraction)

            folder = prepare_model(config.model, progress)
        model = read_model_info(folder, _served_name(config), config.max_model_len)
        check_files(folder)
    except UnsupportedModel as error:
        raise ConfigError(f"--model: {error}") from None
    return model


def check_groups(config: NodeConfig, model: ModelInfo) -> None:
    """Show how the model is shared out. Raises ConfigError if a rank would hold nothing, or a pool cannot be."""
    spec = read_spec(Path(model.folder))
    sharing.show(config, spec)
    _check_pools(config, spec)


def _served_name(config: NodeConfig) -> str:
    if config.served_model_name is not None:
        return config.served_model_name
    path = Path(config.model).resolve()
    return DEMO if config.model == DEMO else path.stem if path.suffix.lower() == ".gguf" else path.name


def _cpu_devices(config: NodeConfig) -> list[str]:
    return [device for device in config.devices if device.startswith("cpu")]


def _check_pools(config: NodeConfig, spec: ModelSpec) -> None:
    """Refuse a pool that was asked for and holds no page, or does not fit into memory beside those of the others."""
    groups = [group for group in config.groups if group.devices[0].startswith("cpu")]
    if not groups or (config.kv_memory is None and config.num_pages is None):
        return
    page_bytes = max(sum(sharing.page_bytes(config, spec, group.size)) for group in groups)
    setting = "--num-pages" if config.kv_memory is None else "--kv-memory"
    num_pages = config.num_pages if config.kv_memory is None else config.kv_memory // page_bytes
    if not num_pages:
        raise ConfigError(f"{setting}: {config.kv_memory} bytes hold no page; use {page_bytes} or more")
    available = available_memory() // len(groups)
    if num_pages * page_bytes > available:
        most = available // page_bytes if config.kv_memory is None else available
        raise ConfigError(
            f"{setting}: {num_pages * page_bytes:,} bytes for each KV pool are more than the free memory; "
            f"use less than {most}"
        )


class LoadingDisplay:
    """A bar of the slowest part on a terminal, log lines now and then otherwise; nothing if all is done at once."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._show: Callable[[str, float], None] | None = None
        self._close: Callable[[], None] = lambda: None
        self._next_line = time.monotonic() + LINE_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def show(self, part: str, fraction: float) -> None:
        """`part` has come this far, 0..1."""
        if sys.stderr.isatty():
            self._show_bar(part, fraction)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            log.info(self._activity, part=part, percent=round(100 * fraction))

    def _show_bar(self, part: str, fraction: float) -> None:
        if self._show is None:
            self._open_bar()
        if self._show is not None:
            self._show(part, fraction)

    def _open_bar(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to import, and only for terminals
        from rich.progress import Progress  # noqa: PLC0415 - likewise

        progress = Progress(console=Console(stderr=True), transient=True)
        bar = progress.add_task(
            self._activity, total=1.0
        )  # one line: a log line of a child takes its place for a moment
        done: dict[str, float] = {}

        def show(part: str, fraction: float) -> None:
            done[part] = fraction
            progress.update(bar, completed=min(done.values()))

        progress.start()
        self._show, self._close = show, progress.stop
