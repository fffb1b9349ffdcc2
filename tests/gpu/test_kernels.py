"""Every kernel against its definition: the cases of `--check`, and the emulator's own edge cases on hardware."""

from dataclasses import replace

import pytest
import torch

from cuda.check.cases.case import Case
from cuda.check.cases.gpu import CASES, name_of
from cuda.kernels.attention import AttentionShape
from cuda.kernels.backend import Backend
from cuda.kernels.gemv import KERNELS
from tests.cuda.kernels import test_activation as activation
from tests.cuda.kernels import test_add_rms_norm as norm
from tests.cuda.kernels import test_attention as attention
from tests.cuda.kernels import test_gather as gather
from tests.cuda.kernels import test_gemm as gemm
from tests.cuda.kernels import test_gemv as gemv
from tests.cuda.kernels import test_rope_and_store as rope
from tests.cuda.kernels import test_sample as sampler
from tests.cuda.kernels.attention_case import Attended, assert_right, make_case
from tests.cuda.kernels.sampling import random_case, sample
from tests.gpu.conftest import Place

DTYPES = (torch.float32, torch.bfloat16)
ALL = [(case, dtype) for case in CASES for dtype in case.dtypes]


@pytest.mark.parametrize(("case", "dtype"), ALL, ids=[f"{case.name}-{name_of(dtype)}" for case, dtype in ALL])
def test_every_kernel_equals_its_definition(place: Place, backend: Backend, case: Case, dtype: torch.dtype) -> None:
    assert case.run(backend, dtype, place.sizes) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(backend: Backend, dtype: torch.dtype) -> None:
    for shape in [(0, 64), (1, 8), (3, 72), (5, 2056)]:
        norm.check(backend, 0, dtype, shape)
        activation.check(backend, "silu", activation.random(0, dtype, shape))
    for num_columns, num_rows in [(8, 0), (8, 1), (72, 11), (2568, 3)]:
        gather.check_embed(backend, dtype, num_columns, num_rows)
        gather.check_take_rows(backend, dtype, num_columns, num_rows)
    gather.check_scatter(backend, 300)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_every_shape(backend: Backend, dtype: torch.dtype) -> None:
    for shape in rope.SHAPES.values():
        for num_tokens, normed in ((0, True), (7, True), (29, False)):
            rope.check(backend, rope.case_of(shape, dtype, normed=normed, num_tokens=num_tokens))


@pytest.mark.parametrize("name", attention.SCENES)
def test_attention_of_every_scene(place: Place, backend: Backend, name: str) -> None:
    if not place.is_gpu and name not in {"groups of 3", "padding only"}:
        pytest.skip("the emulator has these in its own tests")
    scene = attention.SCENES[name]
    case = make_case(scene.shape, scene.dtype, scene.lengths, shared_pages=scene.shared_pages)
    assert_right(Attended(backend, case)(scene.segments, padding=scene.padding), case, scene.segments)


def test_products_of_every_shape(place: Place, backend: Backend) -> None:
    for (dtype, out_dtype), shape in ((pair, shape) for pair in KERNELS for shape in gemv.SHAPES):
        inputs = gemv.whole_numbers(0, dtype, shape)
        assert torch.equal(gemv.multiplied(backend, inputs, out_dtype), gemv.defined(inputs).to(out_dtype))
    large = [(130, 8192, 264), (64, 9001, 8), (2049, 2056, 456)] if place.is_gpu else []
    for shape in [*(shape for shapes in gemm.SHAPES.values() for shape in shapes[-2:]), *large]:
        multiplied = gemm.whole_numbers(0, shape)
        assert torch.equal(gemm.multiplied(backend, multiplied), gemm.defined(multiplied).float())


@pytest.mark.parametrize("max_threads", [64, 512])
def test_every_setting_draws_the_defined_token(place: Place, backend: Backend, max_threads: int) -> None:
    for vocab, num_cases in ((1, 2), (33, 12), (500, 24), *([(32_000, 24)] if place.is_gpu else [])):
        cases = [random_case(number, vocab) for number in range(num_cases)]
        sampler.assert_right(cases, sample(backend, cases, max_threads=max_threads))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_its_company(backend: Backend, dtype: torch.dtype) -> None:
    gemv.check_company(backend, dtype)
    if dtype == torch.bfloat16:
        norm.check_company(backend)
        activation.check_company(backend)
        rope.check_company(backend)


def test_a_products_bits_do_not_depend_on_how_many_rows_it_has(place: Place, backend: Backend) -> None:
    num_rows, num_columns, depth = (2048, 4096, 4096) if place.is_gpu else (70, 33, 136)
    x, weight, _ = gemm.normal(4, (num_rows, num_columns, depth))
    together = gemm.multiplied(backend, (x, weight, None))
    for row in (0, 63, 64, num_rows - 1):
        assert torch.equal(gemm.multiplied(backend, (x[row : row + 1], weight, None))[0], together[row])
    assert torch.equal(gemm.multiplied(backend, (x.flip(0), weight, None)), together.flip(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_attentions_bits_depend_on_nothing_but_position_and_keys(backend: Backend, dtype: torch.dtype) -> None:
    case = make_case(AttentionShape(4, 1, 64, 16), dtype, [450, 333, 77, 700])
    attended = Attended(backend, case)
    whole = attended([(0, 0, 450)])
    for chunks in ([(0, 0, 63), (0, 63, 5), (0, 68, 382)], [(0, 0, 200), (0, 200, 250)]):
        assert attention.same_bits(torch.cat([attended([chunk]) for chunk in chunks]), whole)
    assert attention.same_bits(attended([(1, 330, 3), (0, 350, 100), (3, 699, 1)])[3:103], whole[350:])
    uncut = replace(attended.kernel.planner, max_partial_rows=0)
    assert attention.same_bits(attended([(3, 699, 1)]), attended([(3, 699, 1)], planner=uncut))
