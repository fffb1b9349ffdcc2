"""The list of the GPU kernels' cases, and how large they are: the same on a GPU, in the emulator, in tests."""

import torch

from cuda.check.cases import rows, step
from cuda.check.cases.case import FLOAT, HALF, Case, Sizes

SMALL = Sizes(rows=5, columns=136, num_heads=4, num_kv_heads=2, head_dim=64, context=150, vocab=500)
"""So that the emulator has results in a moment."""

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
