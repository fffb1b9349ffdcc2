"""Decode passes captured once for each padded number of rows, so that the host queues one launch and not hundreds.

All are captured at load: captured at its first use, a size would stall everybody's next token, and could fail then.
"""

from collections.abc import Callable
from functools import partial

from cuda.backends.backend import Backend
from cuda.devices.gpu_fill import padded_rows


class DecodeGraphs:
    """`run(n)` queues a decode pass of n rows; what it reads must lie at fixed addresses."""

    def __init__(self, backend: Backend, run: Callable[[int], object], max_rows: int) -> None:
        sizes = sorted({padded_rows(num_rows, max_rows) for num_rows in range(1, max_rows + 1)}, reverse=True)
        self._graphs = {size: backend.capture(partial(run, size)) for size in sizes}

    def launch(self, num_rows: int) -> None:
        """Queue a pass of `num_rows`, one of the padded numbers."""
        self._graphs[num_rows].launch()
