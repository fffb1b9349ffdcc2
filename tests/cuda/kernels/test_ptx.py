"""Every function of ptx.cuh is assembled for every GPU, called or not by a kernel, and has a twin in the emulator."""

import re
import shutil
from pathlib import Path

import pytest

from cuda.emulator import RawModule
from cuda.gpu.backends.cubins import ARCHITECTURES, OPTIONS
from cuda.gpu.backends.nvrtc import Compiler, MissingPart, find_compiler

KERNELS = Path(__file__).parents[3] / "cuda" / "kernels"
FUNCTIONS = re.findall(r"__device__ __forceinline__ .*?(\w+)\(", (KERNELS / "ptx.cuh").read_text())
MATRIX = "unsigned r[4]; ptx::ldmatrix_x4{}(r, shared); out[0] += r[3];"
CALLS = {
    "mma_m16n8k16_bf16": "ptx::mma_m16n8k16_bf16(d, a, b);",
    "ldmatrix_x4": MATRIX.format(""),
    "ldmatrix_x4_trans": MATRIX.format("_trans"),
    "cp_async_16": "ptx::cp_async_16(shared, in, 12);",
    "cp_async_commit": "ptx::cp_async_commit();",
    "cp_async_wait": "ptx::cp_async_wait<2>();",
    "store_release_system": "ptx::store_release_system(out, 1u);",
    "load_acquire_system": "out[0] += ptx::load_acquire_system(in);",
    "store_release_gpu": "ptx::store_release_gpu(out, 1u);",
    "load_acquire_gpu": "out[0] += ptx::load_acquire_gpu(in);",
    "barrier_sync": "ptx::barrier_sync(1, 64);",
    "barrier_arrive": "ptx::barrier_arrive(2, 64);",
    "global_timer_ns": "out[0] += (unsigned)ptx::global_timer_ns();",
    "trap": "ptx::trap();",
}
SOURCE = """#include "ptx.cuh"
extern "C" __global__ void __launch_bounds__(64) every_instruction(unsigned* out, const unsigned* in) {
    __shared__ __align__(16) unsigned shared[64];
    float d[4] = {};
    const unsigned a[4] = {in[0], in[1], in[2], in[3]}, b[2] = {in[4], in[5]};
CALLS
    out[1] = shared[threadIdx.x] + (unsigned)d[3];
}
""".replace("CALLS", "\n".join(f"    {{ {call} }}" for call in CALLS.values()))


def test_every_function_is_called_here() -> None:
    assert {*FUNCTIONS} - {"shared_address"} == {*CALLS}  # that one is the others' own, and called by them


@pytest.fixture
def compiler() -> Compiler:
    try:
        return find_compiler()
    except MissingPart as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_function_is_assembled(compiler: Compiler, architecture: str) -> None:
    options = (f"-arch={architecture}", *OPTIONS, f"-I{KERNELS}", f"-I{compiler.include}")
    program = compiler.compile(SOURCE, "every_instruction.cu", ["every_instruction"], options)
    assert all(instruction in program.ptx for instruction in ("mma.sync", "ldmatrix", "cp.async", "ld.acquire.sys"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
def test_every_function_has_a_twin_in_the_emulator() -> None:
    module = RawModule(code=SOURCE.replace("ptx.cuh", str(KERNELS / "ptx.cuh")))
    assert len(module.get_function("every_instruction").parameters) == 2
