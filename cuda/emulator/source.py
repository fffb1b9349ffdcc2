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
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\('
)
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
    bare = _without_comments_and_strings(code)
    if found := _ASM.search(bare):
        raise SourceError(f"{file}:{bare.count(chr(10), 0, found.start()) + 1}: inline assembly belongs in ptx.cuh")
    names = list(dict.fromkeys([*_KERNEL.findall(_without_comments(code)), *name_expressions]))
    body = _DYNAMIC_SHARED.sub(r"\2* \3 = reinterpret_cast<\2*>(::emulator::dynamic_shared());", code)
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


def _without_comments_and_strings(code: str) -> str:
    return _COMMENT_OR_STRING.sub(lambda match: "\n" * match.group().count("\n"), code)


def _without_comments(code: str) -> str:
    return _COMMENT_OR_STRING.sub(
        lambda match: match.group() if match.group().startswith('"') else "\n" * match.group().count("\n"), code
    )
