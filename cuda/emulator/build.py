"""Compiles the run-time once and each kernel file once, by the C++ compiler in the place of nvcc; `cache` keeps them.

A cached file is named by a hash of everything that its bytes depend on: sources, headers, flags, compiler, CPU.
Never loads what it builds; `runtime` does.
"""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cuda.emulator.cache import cache_folder, keep
from cuda.emulator.errors import SourceError, ToolchainError
from cuda.emulator.source import included_files, translate

Mode = Literal["fast", "check"]

MIN_GCC = 11
INSTALL_HINT = "install it, for example with `apt-get install g++` or `dnf install gcc-c++`, or name one in CXX"
KIND = "emulator"
DIGEST_BYTES = hashlib.sha256().digest_size
HERE = Path(__file__).parent
INCLUDE = HERE / "include"
COMMON_FLAGS = ("-std=c++17", "-g1", "-gdwarf-4", "-fPIC", "-march=native", "-fno-strict-aliasing", "-ffp-contract=off")
RUNTIME_FLAGS = (*COMMON_FLAGS, "-O2", "-pthread")
KERNEL_FLAGS = (
    *COMMON_FLAGS,
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-gnu-unique",  # template statics are shared memory: each module has its own
    "-fvisibility=hidden",
    "-w",  # the sources are nvcc's to warn about
)
MODE_FLAGS: dict[Mode, tuple[str, ...]] = {
    "fast": ("-O3",),
    # For their hooks only: the run-time defines them, and neither libtsan nor libubsan is ever linked.
    "check": (
        "-O1",
        "-fsanitize=thread,signed-integer-overflow,bounds,shift-exponent,integer-divide-by-zero,alignment",
        "--param=tsan-instrument-func-entry-exit=0",
    ),
}


@dataclass(frozen=True)
class Toolchain:
    """A compiler: the command, and a text that changes whenever its output may."""

    command: str
    identity: str


def build_runtime() -> Path:
    """The run-time's shared library.

    Raises:
        ToolchainError: There is no usable g++.
    """
    toolchain = find_toolchain()
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    headers = [*sorted((HERE / "runtime").glob("*.h")), INCLUDE / "emulator_abi.h"]
    key = _key(toolchain, RUNTIME_FLAGS, [path.read_text() for path in (*sources, *headers)])
    target = cache_folder(KIND) / f"runtime-{key}.so"
    if _is_whole(target):
        return target
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "runtime.cpp")  # in one piece: most of the time goes into the same few headers
        whole.write_text("".join(f'#include "{source}"\n' for source in sources))
        return _linked(target, scratch, [toolchain.command, *RUNTIME_FLAGS, "-shared", str(whole)])


def build_module(code: str, file: str, name_expressions: tuple[str, ...], mode: Mode) -> tuple[Path, dict[str, int]]:
    """The shared library of one `.cu`, and the entry number of each kernel in it.

    Raises:
        SourceError: The loader or the compiler refuses the source.
        ToolchainError: There is no usable g++.
    """
    toolchain = find_toolchain()
    translation = translate(code, file, name_expressions)
    folders = (Path(file).parent, INCLUDE)
    flags = (*KERNEL_FLAGS, *MODE_FLAGS[mode])
    headers = [path.read_text() for path in (*included_files(code, folders), *sorted(INCLUDE.glob("*.h")))]
    key = _key(toolchain, flags, [translation.text, *headers])
    search = [f"-I{folder}" for folder in folders]
    target = cache_folder(KIND) / f"{Path(file).stem}-{key}.so"
    if _is_whole(target):
        return target, translation.entries
    with tempfile.TemporaryDirectory() as scratch:
        text, obj = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.o")
        text.write_text(translation.text)
        include = ["-include", str(INCLUDE / "emulator_prelude.h")]
        _run([toolchain.command, *flags, *search, *include, "-c", str(text), "-o", str(obj)])
        # Linked without the sanitizer flag, so that nothing asks for libtsan.
        return _linked(target, scratch, [toolchain.command, "-shared", str(obj)]), translation.entries


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


def _key(toolchain: Toolchain, flags: tuple[str, ...], texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in (toolchain.identity, toolchain.command, *flags, *texts):
        digest.update(len(text).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()[:24]


def _linked(target: Path, scratch: str, command: list[str]) -> Path:
    """Runs `command -o FILE` in `scratch` and keeps the file, with a digest at its end, which loaders pass over."""
    output = Path(scratch) / target.name
    _run([*command, "-o", str(output)])
    code = output.read_bytes()
    return keep(target, code + hashlib.sha256(code).digest())


def _is_whole(target: Path) -> bool:
    """Whether a kept file is there, as it was written."""
    try:
        kept = target.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(kept[:-DIGEST_BYTES]).digest() == kept[-DIGEST_BYTES:]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's compiler
    if done.returncode != 0:
        raise SourceError(f"the compiler refused it:\n{done.stderr.strip()}")


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
