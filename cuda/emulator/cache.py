"""Where compiled code is kept for the next process: the user's cache folder; where that fails, memory of this process.

Whoever reads it checks that a file is what was written: machines crash. Never compiles; `build` does.
"""

import os
import tempfile
from pathlib import Path

_in_memory: dict[Path, str] = {}
"""What files that only this process has would be called."""


def cache_folder(kind: str) -> Path:
    """Of one kind of code; safe to delete at any time, and it need not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tokenstage" / kind


def keep(path: Path, content: bytes) -> Path:
    """Write a file that appears whole or not at all, and return where: elsewhere if the folder cannot be written."""
    try:
        return _written(path, content)
    except OSError:  # read-only, or full: every process compiles for itself
        return _remembered(path.name, content)


def kept_name(path: Path, kind: str) -> str | None:
    """The name of a file that `keep` has written; None for others."""
    return path.name if path.is_relative_to(cache_folder(kind)) else _in_memory.get(path)


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        whole = Path(scratch, path.name)
        whole.write_bytes(content)
        whole.replace(path)
    return path


def _remembered(name: str, content: bytes) -> Path:
    """A file that goes with the process, however that ends."""
    number = os.memfd_create(name)
    path = Path(f"/proc/{os.getpid()}/fd/{number}")
    path.write_bytes(content)
    _in_memory[path] = name
    return path
