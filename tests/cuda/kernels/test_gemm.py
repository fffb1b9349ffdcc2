from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels import reference
from cuda.kernels.backend import Backend
from cuda.kernels.gemm import SHARED_BYTES, SOURCE, STAGES, Gemm, tile_of
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, STALE_COPY, WRONG_RESULT, Mutant, assert_caught

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
LARGE, MIDDLE, SMALL = STAGES
NUM_MULTIPROCESSORS = {LARGE: 2, MIDDLE: 2, SMALL: 99}
"""With which these shapes get this tile."""
SHAPES = {
    LARGE: [(65, 129, 72), (130, 128, 264)],
    MIDDLE: [(9, 135, 136), (64, 130, 8), (65, 64, 456)],
    SMALL: [(0, 16, 64), (1, 1, 8), (5, 67, 136), (70, 32, 584)],
}


def whole_numbers(seed: int, shape: tuple[int, int, int], *, biased: bool = True) -> Inputs:
    """Values whose products and sums fp32 holds exactly, so that results must be equal to the last bit."""
    rows, columns, depth = shape
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.randint(-8, 9, size, generator=generator).bfloat16()
        for size in ((rows, depth), (columns, depth), (columns,))
    )
    return x, weight, bias if biased else None


def normal(seed: int, shape: tuple[int, int, int]) -> Inputs:
    rows, columns, depth = shape
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn((size, depth), generator=generator).bfloat16() for size in (rows, columns))
    return x, weight, None


def multiplied(backend: Backend, inputs: Inputs, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x, weight, bias = (None if tensor is None else on_device(backend, tensor) for tensor in inputs)
    assert x is not None
    assert weight is not None
    out = backend.empty((x.shape[0], weight.shape[0]), out_dtype)
    Gemm(backend, out_dtype)(out, x, weight, bias)
    backend.synchronize()
    return out.cpu()


def defined(inputs: Inputs) -> torch.Tensor:
    x, weight, bias = (None if tensor is None else tensor.float().numpy() for tensor in inputs)
    assert x is not None
    assert weight is not None
    return torch.from_numpy(reference.linear(x, weight, bias))


@needs_compiler
@each_way
@pytest.mark.parametrize(
    ("tile", "out_dtype"), [(LARGE, torch.bfloat16), (MIDDLE, torch.float32), (SMALL, torch.bfloat16)]
)
def test_it_equals_its_definition(mode: Mode, seed: int, tile: tuple[int, int], out_dtype: torch.dtype) -> None:
    backend = emulated(mode, seed, NUM_MULTIPROCESSORS[tile])
    for number, shape in enumerate(SHAPES[tile]):
        assert tile_of(shape[0], shape[1], backend.num_multiprocessors) == tile
        inputs = whole_numbers(seed, shape, biased=number % 2 == 1)
        assert torch.equal(multiplied(backend, inputs, out_dtype), defined(inputs).to(out_dtype))


@needs_compiler
def test_rounding_stays_within_its_tolerance() -> None:
    inputs = normal(3, (3, 40, 4096))
    error = (multiplied(emulated(), inputs).double() - defined(inputs)).abs()
    x, weight, _ = inputs
    assert (error <= 2**-23 * (4096 / 16 + 8) * (x.double().abs() @ weight.double().abs().T)).all()


@needs_compiler
def test_a_rows_bits_depend_neither_on_its_company_nor_on_its_place_nor_on_the_tile() -> None:
    x, weight, _ = normal(4, (135, 150, 520))
    by_tile = {}
    for tile, num_multiprocessors in {LARGE: 4, MIDDLE: 5, SMALL: 99}.items():
        assert tile_of(135, 150, num_multiprocessors) == tile
        by_tile[tile] = multiplied(emulated(num_multiprocessors=num_multiprocessors), (x, weight, None))
    together = by_tile[LARGE]
    assert torch.equal(by_tile[MIDDLE], together)
    assert torch.equal(by_tile[SMALL], together)
    assert torch.equal(multiplied(emulated(), (x.flip(0), weight, None)), together.flip(0))
    for row in (0, 1, 63, 64, 134):
        assert torch.equal(multiplied(emulated(), (x[row : row + 1], weight, None))[0], together[row])


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "tile"),
    [
        (2048, 4096, LARGE),
        (512, 2048, MIDDLE),
        (256, 1024, SMALL),
        (64, 1 << 17, MIDDLE),
        (65, 1 << 17, LARGE),
        (1, 4096, SMALL),
    ],
)
def test_tiles_are_as_large_as_keeps_132_multiprocessors_busy(
    num_rows: int, num_columns: int, tile: tuple[int, int]
) -> None:
    assert tile_of(num_rows, num_columns, 132) == tile


def test_stages_of_every_tile_fill_what_every_gpu_has() -> None:
    assert EmulatedBackend.max_shared_bytes >= SHARED_BYTES
    assert all(2 * 64 * (rows + columns) * stages == SHARED_BYTES for (rows, columns), stages in STAGES.items())


@needs_compiler
def test_rows_that_are_no_whole_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="x has 12 columns"):
        multiplied(emulated(), whole_numbers(0, (1, 4, 12)))


WRONG = frozenset({WRONG_RESULT})
BEHIND = frozenset({"race", *OUT_OF_BOUNDS})
WAIT = "ptx::cp_async_wait<num_stages - 2>();"
BARRIER = "        __syncthreads();  // all threads' copies of this step have landed"
COMMIT = "        }\n        ptx::cp_async_commit();"
FRAGMENT = "{b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]}"
MUTANTS = {
    "a wait that lets one step too many fly": Mutant(SOURCE, WAIT, WAIT.replace("- 2", "- 1"), STALE_COPY),
    "no wait": Mutant(SOURCE, WAIT, "", STALE_COPY),
    "no barrier after the wait": Mutant(SOURCE, BARRIER, "//", STALE_COPY),
    "no empty groups behind the last step": Mutant(SOURCE, COMMIT, "            ptx::cp_async_commit(); }", STALE_COPY),
    "the stage in use refilled": Mutant(
        SOURCE, "copy_step(number + num_stages - 1);", "copy_step(number + num_stages);", STALE_COPY | WRONG
    ),
    "halves of k swapped in weight": Mutant(SOURCE, FRAGMENT, "{b[c / 2][c % 2 * 2 + 1], b[c / 2][c % 2 * 2]}", WRONG),
    "registers of x swapped": Mutant(
        SOURCE,
        "r * mma_rows + lane % 16, k + lane / 16",
        "r * mma_rows + lane / 16 * 8 + lane % 8, k + lane / 8 % 2",
        WRONG,
    ),
    "a swizzle that only ldmatrix knows": Mutant(
        SOURCE, "place(threadIdx.x / step_vectors, vector())", "threadIdx.x * width", WRONG
    ),
    "a vector of k too many": Mutant(SOURCE, "* width < depth;", "* width <= depth;", BEHIND | WRONG),
    "the tail of k left out": Mutant(SOURCE, "(depth + step - 1) / step", "depth / step", WRONG),
    "a row too many": Mutant(SOURCE, "first_row + row < num_rows ?", "first_row + row <= num_rows ?", BEHIND),
    "a row of out too many": Mutant(SOURCE, "if (row < num_rows)", "if (row <= num_rows)", BEHIND),
    "a column of out too many": Mutant(SOURCE, "if (column + 1 < num_columns) row", "row", BEHIND),
    "a barrier more, which is harmless": Mutant(SOURCE, BARRIER, "        __syncthreads();\n" + BARRIER),
}


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    inputs = whole_numbers(1, (9, 37, 584))  # a step more than the ring holds, and a tail

    def run(settings: Settings, sources: Path) -> None:
        found = multiplied(EmulatedBackend(settings, sources=sources), inputs)
        np.testing.assert_array_equal(found.numpy(), defined(inputs).numpy())

    assert_caught(MUTANTS[name], run)
