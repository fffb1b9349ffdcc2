"""Element types of the kernels: torch's dtypes, what `common.cuh` calls them, and the vectors that threads move."""

import torch

ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16"}
VECTOR_BYTES = 16
"""What a thread moves at a time."""


def vectors_of_a_row(num_columns: int, dtype: torch.dtype) -> int:
    """How many vectors of 16 bytes; ValueError if it is not a whole number of them."""
    row_bytes = num_columns * dtype.itemsize
    if num_columns < 1 or row_bytes % VECTOR_BYTES != 0:
        raise ValueError(f"num_columns is {num_columns}: a row of {dtype} must be a multiple of {VECTOR_BYTES} bytes")
    return row_bytes // VECTOR_BYTES
