"""The node's run directory (0700), which holds its actors' sockets; what a killed node has left of its own is removed.

A living node holds a lock on its folder; the kernel lets go of it however the node ends.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "tokenstage-run-"
MAX_TEMP_PATH = 72
SETTLED_S = 10.0
"""A folder in which nothing was made or removed for so long is locked, if its node lives."""


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
