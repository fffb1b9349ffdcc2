"""The list of the GPU kernels' cases, and how large they are: the same on a GPU, in the emulator, in tests."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cuda.check.cases import rows, step
from cuda.check.cases.rows import Sizes
from cuda.kernels.backend import Backend

FLOAT, HALF = torch.float32, torch.bfloat16
SMALL = Sizes(rows=5, columns=136, num_heads=4, num_kv_heads=2, head_dim=64, context=150, vocab=500)
"""So that the emulator has results in a moment."""
LARGE = Sizes(rows=300, columns=4096, num_heads=32, num_kv_heads=8, head_dim=128, context=5000, vocab=32_000)
"""Shapes of an 8B Llama; a vocabulary that the definition draws from in seconds."""


@dataclass(frozen=True)
class Case:
    """`run` returns the share of its tolerance that the worst number uses: more than 1 is wrong."""

    name: str
    run: Callable[[Backend, torch.dtype, Sizes], float]
    dtypes: tuple[torch.dtype, ...] = (FLOAT, HALF)


CASES = (
    Case("embed", rows.embed),
    Case("take_rows", rows.take_rows),
    Case("scatter", rows.scatter, (torch.int32,)),
    Case("add_rms_norm", rows.add_rms_norm),
    Case("gated_activation", rows.gated_activation),
    Case("gemv", rows.gemv),
    Case("gemm", rows.gemm, (HALF,)),
    Case("library's GEMM", rows.library),
    Case("rope_and_store", step.rope_and_store),
    Case("attention", step.attention),
    Case("sample", step.sample, (FLOAT,)),
    Case("captured graph", rows.replay),
)


def name_of(dtype: torch.dtype) -> str:
    """Such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
