"""Where compiled code is kept for the next process: the user's cache folder, or one of this process where that fails.

Whoever reads it checks that a file is what was written: machines crash. Never compiles; `build` does.
"""

import functools
import os
import tempfile
from pathlib import Path

_OWN = "tokenstage-compiled-"


def cache_folder(kind: str) -> Path:
    """Of one kind of code; safe to delete at any time, and it need not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tokenstage" / kind


def keep(path: Path, content: bytes) -> Path:
    """Write a file that appears whole or not at all, and return where: elsewhere if the folder cannot be written."""
    try:
        return _written(path, content)
    except OSError:  # read-only, or full: every process compiles for itself
        return _written(Path(_own_folder().name, path.name), content)


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        whole = Path(scratch, path.name)
        whole.write_bytes(content)
        whole.replace(path)
    return path


def is_kept(path: Path, kind: str) -> bool:
    """Whether a file is one that `keep` wrote."""
    return path.is_relative_to(cache_folder(kind)) or path.parent.name.startswith(_OWN)


@functools.cache
def _own_folder() -> "tempfile.TemporaryDirectory[str]":
    """Deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix=_OWN)
