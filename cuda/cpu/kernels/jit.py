"""How CPU kernels are compiled: numba without the GIL, once for each version of their sources, then from a cache.

Owns the place of that cache: numba notices edits of a function's own file only, so the folder's name is a digest of all
kernel sources. Kernels never see Python objects, only integers and addresses. Read `cuda.cpu.kernels.program` next.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config
from numba.extending import intrinsic

HERE = Path(__file__).parent
Function = TypeVar("Function", bound=Callable[..., object])
_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""For what kernels alone call: entries for Python and C would take a fifth of the time that compiling takes."""


def cache_folder() -> str:
    """Where compiled kernels are kept: elsewhere once any of their sources is another."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(HERE.glob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(root) / "tokenstage" / "kernels" / digest.hexdigest()[:16])


if not config.CACHE_DIR:  # type: ignore[attr-defined]  # made at import, from the environment
    config.CACHE_DIR = cache_folder()  # type: ignore[attr-defined]


@contextmanager
def one_compiler() -> Iterator[None]:
    """Held while kernels are compiled: a second process waits for the first and finds them in the cache."""
    folder = Path(config.CACHE_DIR)  # type: ignore[attr-defined]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError:  # no writable cache folder: every process compiles for itself
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kernel(function: Function) -> Function:
    """A function that Python calls, with integers only: compiled at its first call, then kept on disk."""
    try:
        return cast("Function", numba.njit(nogil=True, cache=True, error_model="numpy")(function))
    except (RuntimeError, OSError):  # no writable cache folder anywhere: compile in every process
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))


def device(function: Function) -> Function:
    """A function that only kernels call; IEEE arithmetic as written, so vector and scalar code agree bit by bit."""
    return cast("Function", numba.njit(nogil=True, error_model="numpy", **_NO_WRAPPERS)(function))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only kernels call, given as the LLVM that it becomes (numba's intrinsic)."""
    return cast("Callable[..., Any]", intrinsic(function))


def fast_device(function: Function) -> Function:
    """Like `device`, with sums that may be reordered: only for loops whose length the batch cannot change."""
    flags = {"reassoc", "contract", "nsz", "nnan", "arcp"}
    return cast("Function", numba.njit(nogil=True, error_model="numpy", fastmath=flags, **_NO_WRAPPERS)(function))
