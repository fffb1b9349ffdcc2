import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda.gpu.backends.cubins import ARCHITECTURES, OPTIONS
from cuda.gpu.backends.nvrtc import CompileError, Compiler, MissingPart, find_compiler
from tests.cuda.gpu.backends.sources import TEMPLATE


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As if no package of NVIDIA's were installed."""
    spec = importlib.util.spec_from_file_location("nvidia", submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    find_compiler.cache_clear()
    yield
    find_compiler.cache_clear()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_template_becomes_machine_code_for_each_architecture(compiler: Compiler, architecture: str) -> None:
    program = compiler.compile(TEMPLATE, "scale.cu", ["scale<float>"], (f"-arch={architecture}", *OPTIONS))
    assert program.cubin[:4] == b"\x7fELF"
    assert program.lowered == {"scale<float>": "_Z5scaleIfEvPT_S0_"}
    assert program.lowered["scale<float>"].encode() in program.cubin


def test_the_toolkits_headers_are_found_but_operators_of_half_types_are_not_there(compiler: Compiler) -> None:
    options = ("-arch=sm_90", *OPTIONS, f"-I{compiler.include}")
    head = '#include "cuda_bf16.h"\n#include "cuda_fp16.h"\n#include "cuda_fp8.h"\n'
    kernel = 'extern "C" __global__ void f(__nv_bfloat16* x) {{ x[0] = {}; }}'
    compiler.compile(head + kernel.format("__float2bfloat16_rn(1.0f)"), "f.cu", ["f"], options)
    for forbidden in ("x[1] + x[2]", "__nv_bfloat16(1.0f)"):
        with pytest.raises(CompileError, match=r"f.cu\(4\): error"):
            compiler.compile(head + kernel.format(forbidden), "f.cu", ["f"], options)


def test_a_refused_source_is_reported_in_the_compilers_words(compiler: Compiler) -> None:
    with pytest.raises(CompileError, match=r'folder/broken.cu\(2\): error: identifier "undefined" is undefined'):
        compiler.compile("\n__global__ void f() { undefined(); }", "folder/broken.cu", (), ("-arch=sm_90",))
    with pytest.raises(CompileError, match="nowhere"):
        compiler.compile(TEMPLATE, "scale.cu", ["nowhere<float>"], ("-arch=sm_90",))


def test_without_the_packages_it_says_what_to_install(no_compiler: None) -> None:  # noqa: ARG001 - a state of the world
    with pytest.raises(MissingPart, match=r"NVRTC 13.*not installed: run `pip install 'tokenstage\[cuda\]'`"):
        find_compiler()
