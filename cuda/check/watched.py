"""Work in a process of its own, spoken to through a pipe: it may crash or hang, and nobody else does."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

EXIT_S = 10.0
"""For a process that is done to let go of its device."""


class Lost(Exception):  # noqa: N818 - the process is
    """It raised, died, or said nothing for too long; the message says which, in one line."""


class Silent(Lost):
    """It said nothing for too long."""


class Died(Lost):
    """Its process did; `how` says more."""

    def __init__(self, code: int | None) -> None:
        self.how = f"ended with {code}" if code is None or code >= 0 else f"was killed by {signal.Signals(-code).name}"
        super().__init__(f"its process {self.how}")


class Process:
    """Runs `work(pipe, *args)`, which hears and is heard through its end of a pipe; all pickles, `work` by its name."""

    def __init__(self, work: Callable[..., None], *args: object) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, value: object) -> None:
        """Died if it has."""
        try:
            self._pipe.send(value)
        except OSError:
            self._died()

    def receive(self, timeout_s: float) -> Any:  # noqa: ANN401 - whatever it says
        """What it says next. Silent if that takes longer, Died if it has."""
        if not self._pipe.poll(timeout_s):
            raise Silent(f"nothing was heard of it for {timeout_s:g} s")
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._died()

    def end(self, patience_s: float = 0.0) -> None:
        """Kill it, unless it ends by itself within `patience_s`."""
        self._process.join(patience_s)
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _died(self) -> NoReturn:
        self._process.join()
        raise Died(self._process.exitcode)


def watched(work: Callable[..., object], *args: object, silence_s: float) -> Iterator[Any]:
    """What `work(report, *args)` gives to `report`, as it comes; all of it pickles, and `work` by its name.

    Raises:
        Lost: `work` raised, its process died, or it reported nothing for `silence_s`.
    """
    process, patience_s = Process(_run, work, args), 0.0
    try:
        while True:
            kind, value = process.receive(silence_s)
            if kind == "failed":
                raise Lost(value)
            if kind == "done":
                patience_s = EXIT_S
                return
            yield value
    finally:
        process.end(patience_s)


def _run(end: "Connection[Any, Any]", work: Callable[..., object], args: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever watches ends it
    try:
        work(lambda value: end.send(("reported", value)), *args)
    except Exception as error:  # noqa: BLE001 - told to who watches
        traceback.print_exc()
        end.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    else:
        end.send(("done", None))
