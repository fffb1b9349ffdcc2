from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels import reference
from cuda.kernels.backend import Backend
from cuda.kernels.gemv import KERNELS, MAX_ROWS, SOURCE, Gemv
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
SHAPES = [(0, 16, 64), (1, 1, 8), (2, 17, 40), (8, 33, 264), (5, 16, 1160), (7, 70, 72), (3, 5, 2056)]


def whole_numbers(seed: int, dtype: torch.dtype, shape: tuple[int, int, int], *, biased: bool = True) -> Inputs:
    """Values whose products and sums fp32 holds exactly, so that results must be equal to the last bit."""
    rows, outputs, depth = shape
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.randint(-8, 9, size, generator=generator).to(dtype)
        for size in ((rows, depth), (outputs, depth), (outputs,))
    )
    return x, weight, bias if biased else None


def multiplied(backend: Backend, inputs: Inputs, out_dtype: torch.dtype) -> torch.Tensor:
    x, weight, bias = (None if tensor is None else on_device(backend, tensor) for tensor in inputs)
    assert x is not None
    assert weight is not None
    out = backend.empty((x.shape[0], weight.shape[0]), out_dtype)
    Gemv(backend, x.dtype, out_dtype)(out, x, weight, bias)
    backend.synchronize()
    return out.cpu()


def defined(inputs: Inputs) -> torch.Tensor:
    arrays = [None if tensor is None else tensor.float().numpy() for tensor in inputs]
    return torch.from_numpy(reference.linear(*arrays))  # type: ignore[arg-type] # x and weight are always there


@needs_compiler
@each_way
@pytest.mark.parametrize(("dtype", "out_dtype"), KERNELS)
def test_it_equals_its_definition(mode: Mode, seed: int, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    for number, shape in enumerate(SHAPES):
        inputs = whole_numbers(seed, dtype, shape, biased=number % 2 == 1)
        assert torch.equal(multiplied(emulated(mode, seed), inputs, out_dtype), defined(inputs).to(out_dtype))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_stays_within_its_tolerance(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn((rows, 4096), generator=generator).to(dtype) for rows in (4, 40))
    found = multiplied(emulated(), (x, weight, None), torch.float32)
    error = (found.double() - defined((x, weight, None))).abs()
    assert (error <= 2**-23 * (4096 / 128 + 16) * (x.double().abs() @ weight.double().abs().T)).all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_depend_neither_on_its_company_nor_on_its_place(dtype: torch.dtype) -> None:
    check_company(emulated(), dtype)


def check_company(backend: Backend, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.randn((rows, 1032), generator=generator).to(dtype) for rows in (MAX_ROWS, 35))
    together = multiplied(backend, (x, weight, None), torch.float32)
    turned = multiplied(backend, (x.flip(0)[:5], weight, None), torch.float32)
    assert torch.equal(turned, together.flip(0)[:5])
    for row in range(MAX_ROWS):
        assert torch.equal(multiplied(backend, (x[row : row + 1], weight, None), torch.float32)[0], together[row])
        assert torch.equal(multiplied(backend, (x[row:], weight, None), torch.float32), together[row:])


@needs_compiler
def test_what_the_kernel_cannot_take_is_refused() -> None:
    backend = emulated()
    with pytest.raises(ValueError, match=r"no kernel from torch\.float32 to torch\.bfloat16"):
        Gemv(backend, torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match="up to 8 rows, not 9"):
        multiplied(backend, whole_numbers(0, torch.bfloat16, (9, 4, 8)), torch.bfloat16)
    with pytest.raises(ValueError, match="x has 12 columns"):
        multiplied(backend, whole_numbers(0, torch.bfloat16, (1, 4, 12)), torch.bfloat16)


WRONG = frozenset({WRONG_RESULT})
BEHIND = frozenset({"race", *OUT_OF_BOUNDS})
DIVERGENT = frozenset({"warp-misuse", "divergent-warp", "deadlock"})
BARRIER = "    __syncthreads();  // no thread reads `partial` before every warp has written its own\n"
SWAPPED = "{low.elements[i], low.elements[i + 1], high.elements[i], high.elements[i + 1]}"
STORE = "partial[warp][group * Own::num_sums + first_sum + i] = sums[i];\n"
SUM = "    const i32 first_sum = sum_over_group(sums, lane);\n"
OF_BF16 = {
    "no barrier between partial sums and their reader": Mutant(
        SOURCE, "* 8] = sums[i];\n" + BARRIER, "* 8] = sums[i];\n", UNSEEN
    ),
    "swapped registers of a fragment": Mutant(
        SOURCE, "{low.elements[i], high.elements[i], low.elements[i + 1], high.elements[i + 1]}", SWAPPED, WRONG
    ),
    "the tail of K read as if whole": Mutant(SOURCE, "is_whole || k + c * chunk < depth", "true", BEHIND | WRONG),
    "a vector of K too many": Mutant(
        SOURCE, "is_whole || k + c * chunk < depth", "is_whole || k + c * chunk <= depth", BEHIND | WRONG
    ),
    "a product that some lanes leave out": Mutant(
        SOURCE, "k - k % chunk + c * chunk < depth", "k + c * chunk < depth", DIVERGENT
    ),
    "the tail of K left out": Mutant(
        SOURCE, "if (begin < depth) take_turn<false>", "if (begin + turn < depth) take_turn<false>", WRONG
    ),
    "rows of weight behind the last": Mutant(
        SOURCE, "min(first + group + 8, num_outputs - 1)", "(first + group + 8)", BEHIND
    ),
    "an output too many": Mutant(SOURCE, "first + output >= num_outputs", "first + output > num_outputs", BEHIND),
    "a warp left out of the sum": Mutant(
        SOURCE, "if (w < blockDim.x / 32) sum", "if (w + 1 < blockDim.x / 32) sum", WRONG
    ),
    "a warp in the sum that the block does not have": Mutant(
        SOURCE, "if (w < blockDim.x / 32) sum", "sum", UNSEEN | WRONG
    ),
}
OF_FLOAT = {
    "no barrier between partial sums and their reader": Mutant(SOURCE, STORE + BARRIER, STORE, UNSEEN),
    "the tail of K read as if whole": Mutant(SOURCE, "!is_whole && k", "false && k", BEHIND | WRONG),
    "a vector of K too many": Mutant(SOURCE, "k + c * chunk >= depth", "k + c * chunk > depth", BEHIND | WRONG),
    "the tail of K left out": Mutant(
        SOURCE, "if (begin < depth) take_turn<false, ", "if (begin + turn < depth) take_turn<false, ", WRONG
    ),
    "a row of weight too many": Mutant(
        SOURCE,
        "min(first + group * Own::num_outputs + n, num_outputs - 1)",
        "(first + group * Own::num_outputs + n)",
        BEHIND,
    ),
    "lanes that take each other's sums": Mutant(
        SOURCE, "if (has_upper) first += half", "if (!has_upper) first += half", WRONG
    ),
    "lanes that store the same sum": Mutant(SOURCE, "if (lane % num_copies == 0)", "", frozenset({"race"})),
    "an output too many": Mutant(SOURCE, "first + number >= num_outputs", "first + number > num_outputs", BEHIND),
    "a warp left out of the sum": Mutant(
        SOURCE, "w < num_warps; ++w) sum += partial[w][own", "w < num_warps - 1; ++w) sum += partial[w][own", WRONG
    ),
    "lanes that keep what they should send": Mutant(
        SOURCE, "has_upper ? upper : lower, sent", "has_upper ? lower : upper, sent", WRONG
    ),
    "lanes that leave before the sum": Mutant(
        SOURCE, SUM, "    if (lane % 8 >= 6) return;\n" + SUM, frozenset({"warp-misuse"})
    ),
}


def assert_mutant_caught(mutant: Mutant, dtype: torch.dtype) -> None:
    cases = [whole_numbers(1, dtype, shape) for shape in ((7, 27, 904), (1, 19, 264))]

    def run(settings: Settings, sources: Path) -> None:
        backend = EmulatedBackend(settings, sources=sources)
        for inputs in cases:
            found = multiplied(backend, inputs, torch.float32)
            np.testing.assert_array_equal(found.numpy(), defined(inputs).numpy())

    assert_caught(mutant, run)


@needs_compiler
@pytest.mark.parametrize("name", OF_BF16)
def test_a_bug_planted_in_the_tensor_core_kernel_is_caught(name: str) -> None:
    assert_mutant_caught(OF_BF16[name], torch.bfloat16)


@needs_compiler
@pytest.mark.parametrize("name", OF_FLOAT)
def test_a_bug_planted_in_the_float_kernel_is_caught(name: str) -> None:
    assert_mutant_caught(OF_FLOAT[name], torch.float32)
