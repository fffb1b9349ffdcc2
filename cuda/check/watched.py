"""Work in a process of its own, whose reports are read as they come: it may crash or hang, and nobody else does."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any


class Lost(Exception):  # noqa: N818 - the process is
    """It died, or said nothing for too long; the message says which."""


def watched(work: Callable[..., object], *args: object, silence_s: float) -> Iterator[Any]:
    """What `work(report, *args)` gives to `report`, as it comes; all of it pickles, and `work` by its name.

    Raises:
        Lost: The process ended otherwise than by returning, or reported nothing for `silence_s`.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_run, args=(theirs, work, args), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            if not ours.poll(silence_s):
                raise Lost(f"nothing was heard of it for {silence_s:g} s")
            try:
                kind, value = ours.recv()
            except EOFError:
                process.join()
                raise Lost(f"its process {_ended(process.exitcode)}") from None
            if kind == "done":
                return
            yield value
    finally:
        process.kill()
        process.join()
        ours.close()


def _run(end: "Connection[Any, Any]", work: Callable[..., object], args: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever watches ends it
    work(lambda value: end.send(("reported", value)), *args)
    end.send(("done", None))


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
