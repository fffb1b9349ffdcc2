"""Turns a `.cu` text into what g++ accepts, keeping every line where it was.

Checks the loader's rules, finds the kernels, and writes the entry points that Python calls. Never runs the compiler;
`build` does.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from cuda.emulator.errors import SourceError

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
_EXTERN_C = re.compile(r'extern\s+"C"\s*(?=\{|__global__)')
_KERNEL = re.compile(r"\b__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^{;]*?\)\s*)?(?:void\s+)?(\w+)\s*\(")
_LAUNCH_BOUNDS = re.compile(r"\b__launch_bounds__\s*(?=\()")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+((?:(?:__align__|alignas)\s*\(\s*\w+\s*\)\s*)?)([\w:][\w:<>,\s]*?)\s+(\w+)\s*\[\s*\]\s*;"
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Translation:
    """A C++ text and, for each kernel that can be asked for, the number of its entry point."""

    text: str
    entries: dict[str, int]


def translate(code: str, file: str, name_expressions: tuple[str, ...]) -> Translation:
    """The C++ of a `.cu`.

    Args:
        code: The CUDA source.
        file: Its path as error messages should show it.
        name_expressions: Kernels that are not `extern "C"`, as CuPy takes them: `"scale<float, 4>"`.

    Raises:
        SourceError: It contains inline assembly, which belongs in `ptx.cuh`.
    """
    bare = _blanked(code)
    if found := _ASM.search(bare):
        raise SourceError(f"{file}:{bare.count(chr(10), 0, found.start()) + 1}: inline assembly belongs in ptx.cuh")
    names = list(dict.fromkeys([*_extern_c_kernels(code, bare), *name_expressions]))
    bounded = _with_launch_bounds_checked(code, bare)
    body = _DYNAMIC_SHARED.sub(r"\2* \3 = reinterpret_cast<\2*>(::emulator::dynamic_shared());", bounded)
    entries = "\n".join(f"EMULATOR_ENTRY({number}, &{name})" for number, name in enumerate(names))
    text = f'#line 1 "{file}"\n{body}\n#line 1 "entries"\n#include "emulator_entry.h"\n{entries}\n'
    return Translation(text, {name: number for number, name in enumerate(names)})


def included_files(code: str, folders: tuple[Path, ...]) -> list[Path]:
    """Every file that the quoted `#include`s reach, in the order met; those not found are left to the compiler."""
    found: list[Path] = []
    waiting = _INCLUDE.findall(code)
    while waiting:
        name = waiting.pop(0)
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None and path not in found:
            found.append(path)
            waiting += _INCLUDE.findall(path.read_text())
    return found


def _blanked(code: str) -> str:
    """The code with spaces for comments and what stands in quotes, every other character where it was."""
    return _COMMENT_OR_STRING.sub(lambda match: re.sub(r'[^\n"]', " ", match.group()), code)


def _extern_c_kernels(code: str, bare: str) -> list[str]:
    """Those declared one by one, and those in `extern "C" { ... }`."""
    names: list[str] = []
    for linkage in _EXTERN_C.finditer(code):
        if bare.startswith("extern", linkage.start()):
            is_block = code[linkage.end()] == "{"
            end = _end_of_group(bare, linkage.end()) if is_block else len(bare)
            found = _KERNEL.findall(bare[linkage.end() : end])
            names += found if is_block else found[:1]
    return names


def _with_launch_bounds_checked(code: str, bare: str) -> str:
    """With a check of the block's size, which CUDA makes at the launch, at the start of every kernel that bounds it."""
    for bounds in reversed(list(_LAUNCH_BOUNDS.finditer(bare))):
        end = _end_of_group(bare, bounds.end())
        parameters = bare.index("(", end)
        body = _end_of_group(bare, parameters)
        if bare[body:].lstrip().startswith("{"):
            brace = bare.index("{", body) + 1
            check = f" ::emulator::check_launch_bounds{code[bounds.end() : end]};"
            code = code[:brace] + check + code[brace:]
    return code


def _end_of_group(bare: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    opening = bare[start]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for match in re.compile(rf"[{opening}{closing}]").finditer(bare, start):
        depth += 1 if match.group() == opening else -1
        if depth == 0:
            return match.end()
    raise SourceError(f"a {opening} that nothing closes")
