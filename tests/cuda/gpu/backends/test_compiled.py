import shutil

import pytest

from cuda.emulator import RawModule
from cuda.gpu.backends.compiled import CompiledKernel, compiled_kernels, warning_lines
from cuda.gpu.backends.cubins import OPTIONS
from cuda.gpu.backends.nvrtc import Compiler
from tests.cuda.gpu.backends.sources import EVERY_SCALAR, EVERY_SCALARS_TYPES, SPILLING, STRUCTURE, TEMPLATE


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
