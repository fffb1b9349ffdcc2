from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.reference import rms_norm
from tests.cuda.kernels.combinations import needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught, plant

NUM_ROWS, NUM_COLUMNS = 3, 3080  # 770 vectors for 256 threads: two of them own a fourth
SOURCE, ROW = "add_rms_norm.cu", "norm_row.cuh"
BOUND = "if (column >= num_columns) continue;\n        kept"
LOADING = """n < max_vectors; ++n) {
        const i32 column = (threadIdx.x + n * blockDim.x) * width;
        if (column >= num_columns) continue;
        kept"""
WRONG = frozenset({WRONG_RESULT})
BEHIND = frozenset({"race", *OUT_OF_BOUNDS})
MISALIGNED = frozenset({"misaligned"})
BARRIER = "    __syncthreads();  // no warp reads `partial` before every warp has written its own\n"

MUTANTS = {
    "no barrier between partial sums and their reader": Mutant("common.cuh", BARRIER, "", UNSEEN),
    "a vector too many": Mutant(ROW, BOUND, BOUND.replace(">=", ">"), BEHIND),
    "vectors behind the row not skipped": Mutant(ROW, BOUND, "kept", BEHIND),
    "a vector left out": Mutant(ROW, LOADING, LOADING.replace("max_vectors", "max_vectors - 1"), WRONG),
    "every lane's partial sum stored": Mutant("common.cuh", "if (lane == 0) partial[warp]", "partial[warp]", UNSEEN),
    "a partial sum of no warp": Mutant("common.cuh", "lane < num_warps", "lane <= num_warps", UNSEEN),
    "rows that overlap": Mutant(SOURCE, "(blockIdx.x) * num_columns", "(blockIdx.x) * (num_columns - 4)", UNSEEN),
    "rows not aligned to vectors": Mutant(
        SOURCE, "(blockIdx.x) * num_columns", "(blockIdx.x) * (num_columns - 1)", MISALIGNED
    ),
    "the residual not written": Mutant(ROW, "store_vector(residual + column, kept[n]);", "", WRONG),
    "the mean over one element more": Mutant(
        ROW, "static_cast<float>(num_columns)", "static_cast<float>(num_columns + 4)", WRONG
    ),
    "a barrier more, which is harmless": Mutant("common.cuh", BARRIER, 2 * BARRIER),
}

pytestmark = needs_compiler


def run(settings: Settings, sources: Path) -> None:
    backend = EmulatedBackend(settings, sources=sources)
    x, before = torch.randn((2, NUM_ROWS, NUM_COLUMNS), generator=torch.Generator().manual_seed(1))
    weight = torch.linspace(-2, 2, NUM_COLUMNS)
    residual, delta, factors = (on_device(backend, tensor) for tensor in (before, x, weight))
    out = backend.empty(x.shape, torch.float32)
    AddRmsNorm(backend, torch.float32, NUM_COLUMNS, 1e-5)(out, residual, delta, factors)
    backend.synchronize()
    np.testing.assert_array_equal(residual.numpy(), before + x)
    right = rms_norm((before + x).numpy(), weight.numpy(), 1e-5)
    np.testing.assert_allclose(out.numpy(), right, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert_caught(MUTANTS[name], run)


def test_a_bug_that_nobody_reports_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="gave right, not"):
        assert_caught(Mutant(ROW, "constexpr i32 max_vectors = 4;", "constexpr i32 max_vectors = 5;", UNSEEN), run)


def test_a_mutant_changes_exactly_one_place() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        plant(Mutant(SOURCE, "no such text", ""))
    with pytest.raises(ValueError, match="occurs 2 times"):
        plant(Mutant(ROW, "continue;", ""))
