"""Finds the C++ compiler that stands in for nvcc, and identifies what its output depends on.

Owns no state. Never compiles kernels; `build` does.
"""

import functools
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cuda.emulator.errors import ToolchainError

MIN_GCC = 11
INSTALL_HINT = "install it, for example with `apt-get install g++` or `dnf install gcc-c++`, or name one in CXX"


@dataclass(frozen=True)
class Toolchain:
    """A compiler: the command, and a text that changes whenever its output may."""

    command: str
    identity: str


def find_toolchain() -> Toolchain:
    """The compiler named by CXX, or g++.

    Raises:
        ToolchainError: There is none, or it is not GCC 11 or later.
    """
    wanted = os.environ.get("CXX", "g++")
    command = shutil.which(wanted)
    if command is None:
        raise ToolchainError(
            f"the CUDA emulator compiles kernels with g++, and `{wanted}` was not found: {INSTALL_HINT}"
        )
    return _identified(command)


@functools.cache
def _identified(command: str) -> Toolchain:
    macros = subprocess.run(  # noqa: S603 - the user's own compiler
        [command, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, check=False
    ).stdout
    values = dict(line.split(" ", 2)[1:] for line in macros.splitlines() if line.count(" ") >= 2)
    if "__clang__" in values or int(values.get("__GNUC__", "0")) < MIN_GCC:
        raise ToolchainError(f"the CUDA emulator needs GCC {MIN_GCC} or later, and `{command}` is not: {INSTALL_HINT}")
    return Toolchain(command, f"gcc {values['__VERSION__']} {platform.machine()} {_cpu()}")


def _cpu() -> str:
    """Model and features, since kernels are compiled for exactly this CPU."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    kept = ("model name", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in info.read_text().splitlines() if line.startswith(kept)}))
