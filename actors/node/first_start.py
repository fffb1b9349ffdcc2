"""What the first start on a machine costs beside converting a model: the CPU kernels, compiled at the same time.

A process of its own, because both take a core for seconds. Workers wait for it (`cuda.cpu.kernels.jit.one_compiler`)
and find the kernels in the cache; if it fails, they compile for themselves and say what is wrong.
"""

import subprocess
import sys
from typing import Self

COMMAND = "from cuda.cpu.kernels.program import compile_kernels; compile_kernels()"


class KernelCompiler:
    """Idle until `start`; ended when the block is left."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Begin to compile; once is enough."""
        if self._process is None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-c", COMMAND], stdin=quiet, stdout=quiet, stderr=quiet
            )
