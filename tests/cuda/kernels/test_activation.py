from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels import reference
from cuda.kernels.activation import SOURCE, GatedActivation
from cuda.kernels.backend import Backend
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught

Kind = Literal["silu", "gelu"]
DEFINITIONS = {"silu": reference.silu_mul, "gelu": reference.gelu_mul}
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 2**-8}
SHAPES = [(0, 64), (1, 8), (3, 72), (2, 2056), (301, 16)]


def gated(backend: Backend, kind: Kind, gate_up: torch.Tensor) -> torch.Tensor:
    num_columns = gate_up.shape[1] // 2
    out = backend.empty((gate_up.shape[0], num_columns), gate_up.dtype)
    GatedActivation(backend, gate_up.dtype, kind, num_columns)(out, on_device(backend, gate_up))
    backend.synchronize()
    return out.cpu()


def random(seed: int, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
    values = 4 * torch.randn((shape[0], 2 * shape[1]), generator=torch.Generator().manual_seed(seed))
    if shape[0] > 0:
        values[0, :4] = torch.tensor([-700.0, 700.0, -0.0, -90.0])  # where exp is 0 or infinite
    return values.to(dtype)


@needs_compiler
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["silu", "gelu"])
def test_it_equals_its_definition(mode: Mode, seed: int, dtype: torch.dtype, kind: Kind) -> None:
    for shape in SHAPES:
        check(emulated(mode, seed), kind, random(seed, dtype, shape))


def check(backend: Backend, kind: Kind, gate_up: torch.Tensor) -> None:
    found, right = gated(backend, kind, gate_up), DEFINITIONS[kind](gate_up.float().numpy())
    np.testing.assert_allclose(found.float().numpy(), right, rtol=TOLERANCES[gate_up.dtype], atol=1e-10)


@needs_compiler
def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    check_company(emulated())


def check_company(backend: Backend) -> None:
    gate_up = random(7, torch.bfloat16, (9, 2056))
    together = gated(backend, "silu", gate_up)
    assert all(torch.equal(gated(backend, "silu", gate_up[row : row + 1])[0], together[row]) for row in range(9))


@pytest.mark.parametrize("num_columns", [0, 7, 12])
def test_rows_that_are_no_whole_vectors_are_refused(num_columns: int) -> None:
    with pytest.raises(ValueError, match=f"num_columns is {num_columns}"):
        GatedActivation(emulated(), torch.bfloat16, "silu", num_columns)


BEHIND = frozenset({"race", *OUT_OF_BOUNDS})
MUTANTS = {
    "a vector too many": Mutant(SOURCE, "if (column >= num_columns)", "if (column > num_columns)", BEHIND),
    "rows that overlap": Mutant(SOURCE, "out + row * num_columns", "out + row * (num_columns - 8)", UNSEEN),
    "gate for up": Mutant(SOURCE, "(row * 2 + 1)", "(row * 2)", frozenset({WRONG_RESULT})),
    "blocks that overlap": Mutant(SOURCE, "blockIdx.y * blockDim.x", "blockIdx.y * (blockDim.x - 1)", UNSEEN),
}


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    def run(settings: Settings, sources: Path) -> None:
        gate_up = random(1, torch.bfloat16, (3, 2120))
        found = gated(EmulatedBackend(settings, sources=sources), "silu", gate_up)
        np.testing.assert_allclose(found.float().numpy(), reference.silu_mul(gate_up.float().numpy()), rtol=2**-8)

    assert_caught(MUTANTS[name], run)
