import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda.emulator import RawModule
from cuda.gpu.backends.cubins import OPTIONS, CompiledKernel, compiled_kernels, cubin_of, warning_lines
from cuda.gpu.backends.nvrtc import CompileError, Compiler, Program
from tests.cuda.gpu.backends.sources import EVERY_SCALAR, EVERY_SCALARS_TYPES, SPILLING, STRUCTURE, TEMPLATE


class Counter:
    """How often the compiler was asked."""

    def __init__(self, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compile_really = compiler.compile

        def compile_counted(code: str, file: str, names: Sequence[str], options: Sequence[str]) -> Program:
            self.count += 1
            return compile_really(code, file, names, options)

        monkeypatch.setattr(compiler, "compile", compile_counted)


@pytest.fixture
def compiles(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(compiler, monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "far.cuh").write_text("#pragma once\n")
    (tmp_path / "near.cuh").write_text('#pragma once\n#include "far.cuh"\n')
    path = tmp_path / "scale.cu"
    path.write_text('#include "near.cuh"\n#include "cuda_bf16.h"\n' + TEMPLATE)
    return path


@pytest.mark.usefixtures("cache")
def test_a_second_call_takes_what_the_first_one_compiled(source: Path, compiles: Counter) -> None:
    first = cubin_of(source, ["scale<float>"], "sm_90")
    assert cubin_of(source, ["scale<float>"], "sm_90") == first
    assert compiles.count == 1
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert first.kernels["scale<float>"].lowered == "_Z5scaleIfEvPT_S0_"
    assert first.warnings == ()


@pytest.mark.usefixtures("cache")
def test_architecture_names_source_and_every_header_make_another_entry(source: Path, compiles: Counter) -> None:
    paths = [cubin_of(source, ["scale<float>"], "sm_90").path]
    paths.append(cubin_of(source, ["scale<float>"], "sm_80").path)
    paths.append(cubin_of(source, ["scale<int>"], "sm_90").path)
    (source.parent / "far.cuh").write_text("#pragma once\n#define UNUSED\n")
    paths.append(cubin_of(source, ["scale<float>"], "sm_90").path)
    source.write_text(source.read_text().replace("factor;", "factor + factor;"))
    paths.append(cubin_of(source, ["scale<float>"], "sm_90").path)
    assert len(set(paths)) == compiles.count == 5


@pytest.mark.parametrize("suffix", [".json", ".cubin"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\x00"])
def test_a_damaged_entry_is_built_anew(
    source: Path, compiles: Counter, cache: Path, suffix: str, content: bytes | None
) -> None:
    whole = cubin_of(source, ["scale<float>"], "sm_90")
    code = whole.path.read_bytes()
    (damaged,) = cache.glob(f"*{suffix}")
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    assert cubin_of(source, ["scale<float>"], "sm_90") == whole
    assert whole.path.read_bytes() == code
    assert compiles.count == 2


def test_a_cache_that_cannot_be_written_costs_a_compilation_only(
    source: Path, compiles: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for count in (1, 2):
        assert cubin_of(source, ["scale<float>"], "sm_90").path.read_bytes()[:4] == b"\x7fELF"
        assert compiles.count == count


def test_two_at_once_leave_one_whole_entry_and_nothing_else(source: Path, cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        cubins = list(pool.map(lambda _number: cubin_of(source, ["scale<float>"], "sm_90"), range(2)))
    assert cubin_of(source, ["scale<float>"], "sm_90") in cubins
    assert sorted({path.suffix for path in cache.iterdir()}) == [".cubin", ".json"]


def test_a_refused_source_leaves_nothing_behind(source: Path, compiler: Compiler, cache: Path) -> None:
    source.write_text("__global__ void f() { undefined(); }")
    with pytest.raises(CompileError, match=r"scale.cu\(1\)"):
        cubin_of(source, ["f"], "sm_90")
    assert not cache.exists()
    assert compiler.version[:3] == "13."


def compiled(compiler: Compiler, code: str, name: str, architecture: str = "sm_90") -> CompiledKernel:
    program = compiler.compile(code, "kernel.cu", [name], (f"-arch={architecture}", *OPTIONS))
    return compiled_kernels(program)[name]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_count_kind_and_size_of_parameters_are_the_sources(compiler: Compiler, architecture: str) -> None:
    kernel = compiled(compiler, EVERY_SCALAR, "every_scalar", architecture)
    assert [f"{parameter.kind}{parameter.size}" for parameter in kernel.parameters] == EVERY_SCALARS_TYPES


def test_a_structure_has_its_size_with_its_padding(compiler: Compiler) -> None:
    kernel = compiled(compiler, STRUCTURE, "structure")
    assert [str(parameter) for parameter in kernel.parameters] == ["integer32", "struct576", "float32"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
def test_the_emulator_sees_the_same_parameters(compiler: Compiler) -> None:
    emulated = RawModule(code=EVERY_SCALAR).get_function("every_scalar").parameters
    kinds = {"p": "i", "u": "i", "b": "i"}
    here = compiled(compiler, EVERY_SCALAR, "every_scalar").parameters
    assert [(parameter.kind, parameter.size) for parameter in here] == [
        (kinds.get(parameter.kind, parameter.kind), parameter.size) for parameter in emulated
    ]


def test_launch_bounds_and_static_shared_memory_are_the_sources(compiler: Compiler) -> None:
    kernel = compiled(compiler, TEMPLATE, "scale<double>")
    assert (kernel.max_threads, kernel.shared_bytes, kernel.spill_bytes) == (64, 64 * 8, 0)
    assert 0 < kernel.registers <= 255
    assert compiled(compiler, EVERY_SCALAR, "every_scalar").max_threads is None


def test_spills_are_seen_and_warned_of(compiler: Compiler) -> None:
    program = compiler.compile(SPILLING, "kernel.cu", ["spilling"], ("-arch=sm_80", *OPTIONS))
    kernel = compiled_kernels(program)["spilling"]
    assert kernel.registers == 64
    assert kernel.spill_bytes > 0
    assert kernel.stack_bytes > 0
    (warning,) = warning_lines(program.log)
    assert "Registers are spilled" in warning


def test_an_unused_variable_is_warned_of(compiler: Compiler) -> None:
    program = compiler.compile('extern "C" __global__ void f() { int x; }', "f.cu", ["f"], ("-arch=sm_90",))
    (warning,) = warning_lines(program.log)
    assert 'variable "x"' in warning
