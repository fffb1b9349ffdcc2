import numpy as np
import pytest
import torch

from cuda.emulator.build import Mode
from cuda.kernels.add_rms_norm import AddRmsNorm, block_threads
from cuda.kernels.backend import Backend
from cuda.kernels.reference import rms_norm
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device

EPS = 1e-5


def random_tensors(seed: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@needs_compiler
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 64), (1, 8), (3, 72), (2, 576), (5, 2056), (1, 4096)])
def test_it_equals_its_definition(mode: Mode, seed: int, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    check(emulated(mode, seed), seed, dtype, shape)


def check(backend: Backend, seed: int, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, before, weight = random_tensors(seed, dtype, shape, shape, (shape[1],))
    residual, delta, factors = (on_device(backend, tensor) for tensor in (before, x, weight))
    plain, fused = backend.empty(shape, dtype), backend.empty(shape, dtype)
    norm = AddRmsNorm(backend, dtype, shape[1], EPS)

    norm(plain, residual, None, factors)
    norm(fused, residual, delta, factors)
    backend.synchronize()

    total = (before.float() + x.float()).to(dtype)
    assert torch.equal(residual.cpu(), total)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-8
    for out, rows in ((plain, before), (fused, total)):
        right = rms_norm(rows.float().numpy(), weight.float().numpy(), EPS)
        np.testing.assert_allclose(out.cpu().float().numpy(), right, rtol=tolerance, atol=1e-6)


@needs_compiler
def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    check_company(emulated())


def check_company(backend: Backend) -> None:
    x, weight = random_tensors(7, torch.bfloat16, (9, 576), (576,))
    norm = AddRmsNorm(backend, torch.bfloat16, 576, EPS)

    def normed(rows: torch.Tensor) -> torch.Tensor:
        out = backend.empty(rows.shape, rows.dtype)
        norm(out, on_device(backend, rows), None, on_device(backend, weight))
        backend.synchronize()
        return out

    together = normed(x)
    assert all(torch.equal(normed(x[row : row + 1])[0], together[row]) for row in range(9))


@pytest.mark.parametrize(("num_columns", "threads"), [(8, 32), (576, 96), (2048, 256), (4096, 256), (16384, 512)])
def test_a_block_has_enough_threads_for_a_row(num_columns: int, threads: int) -> None:
    assert block_threads(num_columns, torch.bfloat16) == threads
    assert threads * 4 * 8 >= num_columns


@pytest.mark.parametrize("num_columns", [0, 7, 12, 32776])
def test_rows_that_the_kernel_cannot_take_are_refused(num_columns: int) -> None:
    with pytest.raises(ValueError, match=f"num_columns is {num_columns}"):
        block_threads(num_columns, torch.bfloat16)
