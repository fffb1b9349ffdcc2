"""The machine code of `cuda/kernels/*.cu`, compiled once for each GPU architecture and kept in the user's cache folder.

An entry is named by a hash of all that its bytes depend on: sources and headers, names, options, architecture,
compiler. Next: `nvrtc`, which compiles; `compiled`, what is known of a kernel.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cuda.emulator.cache import cache_folder, keep
from cuda.emulator.source import included_files
from cuda.gpu.backends.compiled import CompiledKernel, compiled_kernels, warning_lines
from cuda.gpu.backends.nvrtc import Compiler, find_compiler

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
