"""Compiles every kernel for every GPU, and writes what each takes of it: `python -m tests.cuda.kernels.resources`.

The table, `resources.md`, is kept in git: a change of a kernel shows there as a diff. Kernels are the NAMES of their
host modules. Dynamic shared memory is SHARED_BYTES there: of every kernel, or a mapping by name.
"""

import importlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from cuda.gpu.backends.cubins import ARCHITECTURES, CompiledKernel, Cubin, cubin_of
from cuda.gpu.backends.nvrtc import find_compiler
from tests.cuda.kernels.occupancy import occupancy

TABLE = Path(__file__).parent / "resources.md"
SOURCES = sorted((Path(__file__).parents[3] / "cuda" / "kernels").glob("*.cu"))
NUM_COMPILES = 2
"""At once; each takes a core."""
COMPILED_BY = "Compiled by NVRTC"
HEAD = """# What the kernels take of a GPU

Written by `python -m tests.cuda.kernels.resources`. {by} {version}.

Each cell: registers of a thread, shared memory of a block in bytes, share of the warps that a multiprocessor can keep
busy with blocks of the largest size; and local memory of a thread in bytes, where there is any.
"""

Compiled = Mapping[tuple[Path, str], Future[Cubin]]


def host_module(source: Path) -> ModuleType:
    """The module that launches a source's kernels. ModuleNotFoundError if there is none."""
    return importlib.import_module(f"cuda.kernels.{source.stem}")


def compile_all() -> Compiled:
    """Every source for every architecture, by both. What a source's compiler refuses is raised by its future."""
    with ThreadPoolExecutor(NUM_COMPILES) as pool:
        return {
            (source, architecture): pool.submit(_compile, source, architecture)
            for source in SOURCES
            for architecture in ARCHITECTURES
        }


def table(compiled: Compiled) -> str:
    """The text of the file."""
    head = HEAD.format(by=COMPILED_BY, version=find_compiler().version)
    return "\n".join([head, *(line for source in SOURCES for line in _section(source, compiled))])


def _compile(source: Path, architecture: str) -> Cubin:
    names: tuple[str, ...] = host_module(source).NAMES
    return cubin_of(source, names, architecture)


def _section(source: Path, compiled: Compiled) -> Iterator[str]:
    """One source's part of the table."""
    module = host_module(source)
    dynamic: int | Mapping[str, int] = getattr(module, "SHARED_BYTES", 0)
    yield f"## {source.name}\n"
    yield f"| kernel | block | {' | '.join(ARCHITECTURES)} |"
    yield "|---" * (2 + len(ARCHITECTURES)) + "|"
    for name in module.NAMES:
        kernels = {target: compiled[source, target].result().kernels[name] for target in ARCHITECTURES}
        block = kernels[ARCHITECTURES[0]].max_threads
        dynamic_bytes = dynamic if isinstance(dynamic, int) else dynamic.get(name, 0)
        cells = [_cell(target, kernel, dynamic_bytes) for target, kernel in kernels.items()]
        yield f"| `{name}` | {block or '?'} | {' | '.join(cells)} |"
    yield ""


def _cell(architecture: str, kernel: CompiledKernel, dynamic_bytes: int) -> str:
    shared_bytes = kernel.shared_bytes + dynamic_bytes
    cell = f"{kernel.registers}, {shared_bytes}"
    if kernel.max_threads is not None:
        cell += f", {occupancy(architecture, kernel.max_threads, kernel.registers, shared_bytes):.0%}"
    return cell + (f", {kernel.stack_bytes} local" if kernel.stack_bytes else "")


if __name__ == "__main__":
    TABLE.write_text(table(compile_all()))
    print(f"wrote {TABLE}")
