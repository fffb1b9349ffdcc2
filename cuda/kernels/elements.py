"""Element types of the kernels: torch's dtypes and what `common.cuh` calls them."""

import torch

ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16"}
VECTOR_BYTES = 16
"""What a thread moves at a time."""
