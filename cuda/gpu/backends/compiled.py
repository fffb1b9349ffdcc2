"""What is known of a compiled kernel without running it: parameters, registers, shared memory, spills.

Read from the PTX, whose grammar is documented, and from the lines that ptxas prints with `-v`.
"""

import re
from collections.abc import Iterator
from math import prod

import msgspec

from cuda.gpu.backends.nvrtc import Program

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
