"""Every kernel compiles for every GPU, and takes of it what the table says."""

from pathlib import Path

import pytest

from cuda.gpu.backends.cubins import ARCHITECTURES, Cubin
from cuda.gpu.backends.nvrtc import MissingPart, find_compiler
from tests.cuda.kernels.occupancy import MULTIPROCESSORS, resident_blocks
from tests.cuda.kernels.resources import COMPILED_BY, SOURCES, TABLE, Compiled, compile_all, host_module, table

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    try:
        find_compiler()
    except MissingPart as missing:
        pytest.skip(str(missing))
    return compile_all()


@every_source
def test_a_source_has_a_host_module_that_names_its_kernels(source: Path) -> None:
    names = host_module(source).NAMES
    assert names
    assert len(set(names)) == len(names)


@every_source
def test_a_source_with_dynamic_shared_memory_has_a_host_module_that_says_how_much(source: Path) -> None:
    assert hasattr(host_module(source), "SHARED_BYTES") == ("extern __shared__" in source.read_text())


@every_architecture
@every_source
def test_it_compiles_without_warnings_and_spills(compiled: Compiled, source: Path, architecture: str) -> None:
    cubin = compiled[source, architecture].result()
    assert cubin.warnings == ()
    assert [name for name, kernel in cubin.kernels.items() if kernel.spill_bytes] == []


@every_source
def test_every_kernel_states_the_largest_block_that_it_is_launched_with(compiled: Compiled, source: Path) -> None:
    cubin: Cubin = compiled[source, ARCHITECTURES[0]].result()
    assert [name for name, kernel in cubin.kernels.items() if kernel.max_threads is None] == []


def test_resources_are_those_of_the_table_if_its_compiler_is_installed(compiled: Compiled) -> None:
    text = TABLE.read_text()
    if f"{COMPILED_BY} {find_compiler().version}." not in text:
        pytest.skip(f"{TABLE.name} is of another compiler than the installed {find_compiler().version}")
    assert table(compiled) == text, "see what has changed with `python -m tests.cuda.kernels.resources` and `git diff`"


@pytest.mark.parametrize(
    ("architecture", "num_threads", "registers", "shared_bytes", "num_blocks"),
    [
        # What cuda_occupancy.h of CUDA 13.5 answers.
        ("sm_90", 1024, 50, 128, 1),
        ("sm_90", 1024, 32, 128, 2),
        ("sm_89", 256, 40, 128, 6),
        ("sm_80", 128, 168, 50_000, 3),
        ("sm_90", 160, 166, 70_000, 2),
        ("sm_100", 192, 141, 0, 2),
        ("sm_89", 96, 144, 5000, 4),
        ("sm_90", 32, 231, 128, 8),
        ("sm_80", 96, 59, 1000, 10),
        ("sm_90", 32, 16, 0, 32),
        ("sm_89", 32, 16, 0, 24),
        ("sm_80", 64, 24, 83_000, 1),
    ],
)
def test_occupancy_is_nvidias(
    architecture: str, num_threads: int, registers: int, shared_bytes: int, num_blocks: int
) -> None:
    assert resident_blocks(architecture, num_threads, registers, shared_bytes) == num_blocks


def test_every_gpu_that_kernels_are_compiled_for_has_its_limits_written_down() -> None:
    assert tuple(MULTIPROCESSORS) == ARCHITECTURES
