"""Converted GGUF files in the user's cache folder: each made once, whole or not at all.

A folder appears under its final name only by a rename after everything in it was written and synced; whoever
converts holds a file lock, so two nodes never convert the same file at once and what a killed one left behind is
swept by the next. The name holds a hash of the file's path, size and time and of the converter's version.
"""

import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cuda.models.spec import UnsupportedModel

CONVERTER_VERSION: Final = 1
"""Raised whenever the converter writes something else for the same file."""


def converted_folder(gguf: Path, progress: Callable[[float], None] | None = None) -> Path:
    """Return the folder that `gguf` was converted into, after converting it if that has not been done."""
    root = _cache_root()
    folder = root / _key(gguf)
    try:
        if not folder.is_dir():
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not folder.is_dir():
                    _convert_into(folder, gguf, progress or (lambda _fraction: None))
    except OSError as error:
        reason = f"{error.filename or root}: {error.strerror or error}"
        raise UnsupportedModel(
            f"{gguf} cannot be converted ({reason}); point XDG_CACHE_HOME at a writable folder with room"
        ) from error
    return folder


def _cache_root() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG rules: a relative one counts as unset
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise UnsupportedModel("there is no home folder to convert a model into; set XDG_CACHE_HOME") from error
    return base / "tokenstage" / "models"


def _key(gguf: Path) -> str:
    stat = gguf.stat()
    identity = f"{CONVERTER_VERSION}\0{gguf.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return f"{gguf.stem}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(folder: Path, gguf: Path, progress: Callable[[float], None]) -> None:
    try:
        from cuda.models.gguf.convert import convert  # noqa: PLC0415 - numpy and gguf only when a conversion is due
    except ModuleNotFoundError as error:
        raise UnsupportedModel(
            f"{gguf} cannot be converted: the package {error.name} is missing; run `pip install 'tokenstage[gguf]'`"
        ) from error

    for leftover in folder.parent.glob(f"{glob.escape(folder.name)}.partial-*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        convert(gguf, partial, progress)
        for path in (*partial.iterdir(), partial):
            _sync(path)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
