"""Work in a process of its own, whose reports are read as they come: it may crash or hang, and nobody else does."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

EXIT_S = 10.0
"""For a process that is done to let go of its device."""


class Lost(Exception):  # noqa: N818 - the process is
    """It raised, died, or said nothing for too long; the message says which, in one line."""


def watched(work: Callable[..., object], *args: object, silence_s: float) -> Iterator[Any]:
    """What `work(report, *args)` gives to `report`, as it comes; all of it pickles, and `work` by its name.

    Raises:
        Lost: `work` raised, its process died, or it reported nothing for `silence_s`.
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
            if kind == "failed":
                raise Lost(value)
            if kind == "done":
                process.join(EXIT_S)
                return
            yield value
    finally:
        process.kill()
        process.join()
        ours.close()


def _run(end: "Connection[Any, Any]", work: Callable[..., object], args: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever watches ends it
    try:
        work(lambda value: end.send(("reported", value)), *args)
    except Exception as error:  # noqa: BLE001 - told to who watches
        traceback.print_exc()
        end.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    else:
        end.send(("done", None))


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
