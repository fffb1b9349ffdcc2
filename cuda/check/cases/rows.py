"""Cases of the kernels that work on single rows and of the linear layers: how much of its tolerance each uses.

Numbers come from a fixed seed. Read `gpu` for the list, `cuda.kernels.reference` for the definitions.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch

from cuda.check.cases.case import Sizes, equal_share, used_share
from cuda.kernels import reference
from cuda.kernels.activation import GatedActivation
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.backend import Backend, on_device
from cuda.kernels.gather import Gather, Scatter
from cuda.kernels.gemm import Gemm
from cuda.kernels.gemv import MAX_ROWS, Gemv

EPS = 1e-5
ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2**-8 + 2**-14}
"""Relative: of the result, after sums in float32 that are a little off."""
Kind = Literal["silu", "gelu"]
DEFINITIONS = {"silu": reference.silu_mul, "gelu": reference.gelu_mul}


def int32(values: object) -> torch.Tensor:
    """On the host."""
    return torch.tensor(values, dtype=torch.int32)


def normal(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Standard normal numbers, on the host."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def embed(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """Rows by token: exact; padding and tokens that are not there give zeros."""
    table = normal(1, dtype, sizes.vocab, sizes.columns)
    tokens = torch.randint(0, sizes.vocab, (3, 7), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    tokens[1, 1], tokens[1, 2], tokens[2, 6] = -1, sizes.vocab, sizes.vocab - 1
    slots, positions = int32([0, 2, -1, 1, 1, 2]), int32([3, 6, 0, 1, 2, 0])
    out = backend.empty((6, sizes.columns), dtype)
    Gather(backend, dtype, sizes.columns).embed(
        out, *(on_device(backend, each) for each in (table, tokens, slots, positions))
    )
    backend.synchronize()
    zeros = torch.zeros_like(table[0])
    rows = [table[tokens[0, 3]], table[tokens[2, 6]], zeros, zeros, zeros, table[tokens[2, 0]]]
    return equal_share(out, torch.stack(rows))


def take_rows(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """Rows by index: exact."""
    x = normal(1, dtype, sizes.rows, sizes.columns)
    indexes = [sizes.rows - 1, -1, 0, sizes.rows, 0]
    out = backend.empty((5, sizes.columns), dtype)
    Gather(backend, dtype, sizes.columns).take_rows(out, on_device(backend, x), on_device(backend, int32(indexes)))
    backend.synchronize()
    zeros = torch.zeros_like(x[0])
    return equal_share(out, torch.stack([x[-1], zeros, x[0], zeros, x[0]]))


def scatter(backend: Backend, _dtype: torch.dtype, sizes: Sizes) -> float:
    """Cells of an int32 table: exact."""
    right = torch.arange(sizes.rows * 13, dtype=torch.int32).view(sizes.rows, 13)
    table = on_device(backend, right)
    updates = [[row, (5 * row) % 13, -row - 1] for row in range(sizes.rows)]
    Scatter(backend)(table, on_device(backend, int32([*updates, [-1, 0, 7], [sizes.rows, 0, 7]])))
    backend.synchronize()
    for row, column, value in updates:
        right[row, column] = value
    return equal_share(table, right)


def add_rms_norm(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """The residual is summed exactly; its norm is rounded."""
    x, delta, weight = (normal(seed, dtype, *shape) for seed, shape in enumerate(
        ((sizes.rows, sizes.columns), (sizes.rows, sizes.columns), (sizes.columns,))
    ))  # fmt: skip
    residual, out = on_device(backend, x), backend.empty(x.shape, dtype)
    AddRmsNorm(backend, dtype, sizes.columns, EPS)(out, residual, on_device(backend, delta), on_device(backend, weight))
    backend.synchronize()
    total = (x.float() + delta.float()).to(dtype)
    right = reference.rms_norm(total.float().numpy(), weight.float().numpy(), EPS)
    return max(equal_share(residual, total), used_share(out, right, ROUNDING[dtype], 1e-6))


def gated_activation(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """SiLU(gate) * up, and GeLU(gate) * up."""
    gate_up = 4 * normal(1, dtype, sizes.rows, 2 * sizes.columns)
    worst, kinds = 0.0, get_args(Kind)
    for kind in kinds:
        out = backend.empty((sizes.rows, sizes.columns), dtype)
        GatedActivation(backend, dtype, kind, sizes.columns)(out, on_device(backend, gate_up))
        backend.synchronize()
        worst = max(worst, used_share(out, DEFINITIONS[kind](gate_up.float().numpy()), ROUNDING[dtype], 1e-10))
    return worst


def gemv(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """A linear layer of few rows, to its own dtype and to float32: exact."""
    inputs = _whole_numbers(min(sizes.rows, MAX_ROWS), sizes.columns, dtype)
    out_dtypes = dict.fromkeys((dtype, torch.float32))
    return max(_linear(backend, Gemv(backend, dtype, each), inputs, each, 0) for each in out_dtypes)


def gemm(backend: Backend, _dtype: torch.dtype, sizes: Sizes) -> float:
    """A linear layer of bfloat16 whose rows have the same bits in any company: exact."""
    inputs = _whole_numbers(sizes.rows, sizes.columns, torch.bfloat16)
    out_dtypes = torch.bfloat16, torch.float32
    return max(_linear(backend, Gemm(backend, each), inputs, each, 0) for each in out_dtypes)


def library(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """The library's linear layer: it may round the bias' sum once more."""
    inputs = _whole_numbers(sizes.rows, sizes.columns, dtype)
    return _linear(backend, backend.matmul, inputs, dtype, 2 * ROUNDING[dtype])


def replay(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """A captured launch and product, replayed on other numbers, against the same calls made at once."""
    norm = AddRmsNorm(backend, dtype, sizes.columns, EPS)
    first, second = (normal(seed, dtype, sizes.rows, sizes.columns) for seed in (1, 2))
    weight = on_device(backend, normal(3, dtype, sizes.columns, sizes.columns))
    factors = on_device(backend, normal(4, dtype, sizes.columns))
    x, normed, out = on_device(backend, first), backend.empty(first.shape, dtype), backend.empty(first.shape, dtype)

    def run() -> None:
        norm(normed, x, None, factors)
        backend.matmul(out, normed, weight, None)

    run()  # libraries set themselves up at a first call
    graph = backend.capture(run)
    backend.copy(x, second)
    graph.launch()
    backend.synchronize()
    replayed = out.clone()
    run()
    backend.synchronize()
    return used_share(replayed, out.cpu().double().numpy(), ROUNDING[dtype], 1e-3)  # the library may choose anew


def _whole_numbers(rows: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias whose products and sums fp32 holds exactly: results must be equal to the last bit."""
    generator = torch.Generator().manual_seed(rows)
    outputs = depth + 19
    shapes = (rows, depth), (outputs, depth), (outputs,)
    x, weight, bias = (torch.randint(-8, 9, shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


def _linear(
    backend: Backend,
    kernel: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None],
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out_dtype: torch.dtype,
    rtol: float,
) -> float:
    x, weight, bias = inputs
    right = torch.from_numpy(reference.linear(x.float().numpy(), weight.float().numpy(), bias.float().numpy()))
    out = backend.empty(right.shape, out_dtype)
    kernel(out, *(on_device(backend, each) for each in inputs))
    backend.synchronize()
    return used_share(out, right.numpy(), rtol, 1e-6) if rtol else equal_share(out, right.to(out_dtype))
