"""The machine code of `cuda/kernels/*.cu`, compiled once for each GPU architecture and kept in the user's cache folder.

An entry is named by a hash of all that its bytes depend on: sources and headers, names, options, architecture,
compiler. With the code lies what is known of each kernel without running it: read from the PTX, whose grammar is
documented, and from the lines that ptxas prints with `-v`. Next: `nvrtc`, which compiles.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec

from cuda.emulator.cache import cache_folder, keep
from cuda.emulator.source import included_files
from cuda.gpu.backends.nvrtc import Compiler, Program, find_compiler

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100")
"""Of A100, L40S, H100 and H200, B200: what the tests compile every kernel for."""
OPTIONS = (
    "-std=c++17",
    # Half types are converted by intrinsics only, so that the emulator computes what the GPU does.
    *(
        f"-D__CUDA_NO_{element}_{what}__"
        for element in ("HALF", "HALF2", "BFLOAT16", "BFLOAT162")
        for what in ("OPERATORS", "CONVERSIONS")
    ),
    "--ptxas-options=-v",
    "--ptxas-options=-warn-spills",
)
_ENTRY = re.compile(r"\.entry (\w+)\s*\(([^)]*)\)([^{]*)\{")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z])(\d+)\s+(?:\.ptr\s[^,]*?)?\w+(?:\[(\d+)\])?\s*(?:,|$)"
)
_MAX_THREADS = re.compile(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_SECTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: `i` integer or pointer, `f` floating point, `s` structure; and its size in bytes."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"{ {'i': 'integer', 'f': 'float', 's': 'struct'}[self.kind] }{8 * self.size}"


class CompiledKernel(msgspec.Struct, frozen=True):
    """One kernel of a cubin."""

    lowered: str
    """Its name there."""
    parameters: tuple[Parameter, ...]
    max_threads: int | None
    """Most threads of a block, by its launch bounds."""
    registers: int
    """Of a thread."""
    shared_bytes: int
    """Static, of a block."""
    stack_bytes: int
    """Local memory of a thread: arrays with run-time indices, spills."""
    spill_bytes: int
    """Stored and loaded again for lack of registers; also by functions that it calls."""


@dataclass(frozen=True)
class Cubin:
    """One source, compiled for one architecture."""

    path: Path
    kernels: dict[str, CompiledKernel]
    """By name expression."""
    warnings: tuple[str, ...]


class _Entry(msgspec.Struct):
    """What lies beside a cubin; written after it, so that an entry is whole or not there."""

    cubin: str
    digest: str
    kernels: dict[str, CompiledKernel]
    warnings: tuple[str, ...]


def cubin_of(source: Path, names: Sequence[str], architecture: str) -> Cubin:
    """The kernels `names` of a `.cu`, compiled unless the cache has them. Processes and threads may ask at once.

    Args:
        source: The file; its own folder and the toolkit's are searched for what it includes.
        names: Name expressions, or names of `extern "C"` kernels.
        architecture: Such as "sm_90".

    Raises:
        MissingPart: NVRTC is not installed.
        CompileError: The source is refused.
    """
    compiler = find_compiler()
    entry = cache_folder("cubins") / f"{source.stem}-{architecture}-{_key(compiler, source, names, architecture)}.json"
    return _kept(entry) or _compiled(compiler, source, names, architecture, entry)


def _key(compiler: Compiler, source: Path, names: Sequence[str], architecture: str) -> str:
    code = source.read_text()
    headers = included_files(code, (source.parent, compiler.include))
    digest = hashlib.sha256()
    for text in (compiler.version, architecture, *OPTIONS, *names, "", code, *(path.read_text() for path in headers)):
        digest.update(len(text).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()[:24]


def _kept(path: Path) -> Cubin | None:
    """An entry as it was written; None if it is not there, or damaged."""
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=_Entry)
        code = (path.parent / entry.cubin).read_bytes()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if hashlib.sha256(code).hexdigest() != entry.digest:
        return None
    return Cubin(path.parent / entry.cubin, entry.kernels, entry.warnings)


def _compiled(compiler: Compiler, source: Path, names: Sequence[str], architecture: str, path: Path) -> Cubin:
    options = (f"-arch={architecture}", *OPTIONS, f"-I{source.parent}", f"-I{compiler.include}")
    program = compiler.compile(source.read_text(), str(source), names, options)
    digest = hashlib.sha256(program.cubin).hexdigest()
    # Named by its content: of two processes that compile the same at once, neither damages what the other wrote.
    cubin = path.with_name(f"{path.stem}-{digest[:8]}.cubin")
    entry = _Entry(cubin.name, digest, compiled_kernels(program), warning_lines(program.log))
    kept = keep(cubin, program.cubin)
    keep(path, msgspec.json.format(msgspec.json.encode(entry)))
    return Cubin(kept, entry.kernels, entry.warnings)


def compiled_kernels(program: Program) -> dict[str, CompiledKernel]:
    """Each name expression's kernel."""
    entries = {found[1]: found for found in _ENTRY.finditer(program.ptx)}
    reports = dict(_reports(program.log))
    return {name: _kernel(entries[lowered], reports[lowered]) for name, lowered in program.lowered.items()}


def warning_lines(log: str) -> tuple[str, ...]:
    """The lines of a compiler's log that warn."""
    return tuple(line for line in log.splitlines() if "warning" in line and not line.startswith("Remark:"))


def _reports(log: str) -> Iterator[tuple[str, str]]:
    """What ptxas says of each kernel, by lowered name; functions that it calls follow it."""
    starts = [*_SECTION.finditer(log)]
    for start, end in zip(starts, [*(after.start() for after in starts[1:]), len(log)], strict=True):
        yield start[1], log[start.end() : end]


def _kernel(entry: re.Match[str], report: str) -> CompiledKernel:
    lowered, parameters, attributes = entry.groups()
    bounds = _MAX_THREADS.search(attributes)
    threads = None if bounds is None else [int(size) for size in bounds.groups() if size is not None]
    return CompiledKernel(
        lowered=lowered,
        parameters=tuple(_parameter(*found.groups()) for found in _PARAMETER.finditer(parameters)),
        max_threads=None if threads is None else prod(threads),
        registers=_number(r"Used (\d+) registers", report),
        shared_bytes=_number(r"(\d+) bytes smem", report),
        stack_bytes=_number(r"(\d+) bytes cumulative stack size", report),
        spill_bytes=sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(report)),
    )


def _parameter(kind: str, bits: str, num_elements: str | None) -> Parameter:
    if num_elements is not None:
        return Parameter("s", int(bits) // 8 * int(num_elements))
    return Parameter("f" if kind == "f" else "i", int(bits) // 8)


def _number(pattern: str, report: str) -> int:
    """The first number that the pattern finds; ptxas leaves out what is zero."""
    found = re.search(pattern, report)
    return 0 if found is None else int(found[1])
