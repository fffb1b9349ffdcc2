"""Compiles the run-time once and each kernel file once, into the user's cache folder.

A cached file is named by a hash of everything that its bytes depend on: sources, headers, flags, compiler, CPU.
Never loads what it builds; `runtime` does.
"""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from cuda.emulator.errors import SourceError
from cuda.emulator.source import included_files, translate
from cuda.emulator.toolchain import Toolchain, find_toolchain

Mode = Literal["fast", "check"]

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


def cache_folder() -> Path:
    """Where compiled kernels are kept; safe to delete at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tokenstage" / "emulator"


def build_runtime() -> Path:
    """The run-time's shared library.

    Raises:
        ToolchainError: There is no usable g++.
    """
    toolchain = find_toolchain()
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    headers = [*sorted((HERE / "runtime").glob("*.h")), INCLUDE / "emulator_abi.h"]
    key = _key(toolchain, RUNTIME_FLAGS, [path.read_text() for path in (*sources, *headers)])
    target = cache_folder() / f"runtime-{key}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "runtime.cpp")  # in one piece: most of the time goes into the same few headers
        whole.write_text("".join(f'#include "{source}"\n' for source in sources))
        return _built(target.name, [toolchain.command, *RUNTIME_FLAGS, "-shared", str(whole)])


def build_module(
    code: str, file: str, options: tuple[str, ...], name_expressions: tuple[str, ...], mode: Mode
) -> tuple[Path, dict[str, int]]:
    """The shared library of one `.cu`, and the entry number of each kernel in it.

    Raises:
        SourceError: The loader or the compiler refuses the source.
        ToolchainError: There is no usable g++.
    """
    toolchain = find_toolchain()
    translation = translate(code, file, name_expressions)
    folders = (Path(file).parent, *(Path(option[2:]) for option in options if option.startswith("-I")), INCLUDE)
    flags = (*KERNEL_FLAGS, *MODE_FLAGS[mode], *options)
    headers = [path.read_text() for path in (*included_files(code, folders), *sorted(INCLUDE.glob("*.h")))]
    key = _key(toolchain, flags, [translation.text, *headers])
    search = [f"-I{folder}" for folder in folders]
    objects = cache_folder() / f"{Path(file).stem}-{key}.so"
    if objects.exists():
        return objects, translation.entries
    with tempfile.TemporaryDirectory() as scratch:
        text, obj = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.o")
        text.write_text(translation.text)
        include = ["-include", str(INCLUDE / "emulator_prelude.h")]
        _run([toolchain.command, *flags, *search, *include, "-c", str(text), "-o", str(obj)])
        # Linked without the sanitizer flag, so that nothing asks for libtsan.
        _built(objects.name, [toolchain.command, "-shared", str(obj)])
    return objects, translation.entries


def _key(toolchain: Toolchain, flags: tuple[str, ...], texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in (toolchain.identity, toolchain.command, *flags, *texts):
        digest.update(len(text).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()[:24]


def _built(name: str, command: list[str]) -> Path:
    """Runs `command -o FILE` unless the cache has it; the file appears whole or not at all."""
    target = cache_folder() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / name
        _run([*command, "-o", str(output)])
        output.replace(target)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's compiler
    if done.returncode != 0:
        raise SourceError(f"the compiler refused it:\n{done.stderr.strip()}")
