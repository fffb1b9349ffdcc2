"""Host side of `add_rms_norm.cu`: its kernels' names, and how many threads a row needs.

Owns nothing and launches nothing; knows sizes, never arrays of a particular back end.
"""

from typing import Literal

ELEMENT_BYTES = {"float": 4, "bf16": 2}
VECTOR_BYTES = 16
MAX_VECTORS = 4  # a thread keeps
MAX_THREADS = 1024

Element = Literal["float", "bf16"]


def kernel_name(element: Element, *, add: bool) -> str:
    """The name expression of one variant."""
    return f"add_rms_norm<{element}, {str(add).lower()}>"


def block_threads(num_columns: int, element: Element) -> int:
    """Threads of a block for rows of `num_columns`; a function of the row alone, so that results are too.

    Raises:
        ValueError: A row is not a whole number of 16-byte vectors, or too long.
    """
    row_bytes = num_columns * ELEMENT_BYTES[element]
    if num_columns < 1 or row_bytes % VECTOR_BYTES != 0:
        raise ValueError(f"num_columns is {num_columns}: a row of {element} must be a multiple of {VECTOR_BYTES} bytes")
    num_vectors = row_bytes // VECTOR_BYTES
    if num_vectors > MAX_VECTORS * MAX_THREADS:
        limit = MAX_VECTORS * MAX_THREADS * VECTOR_BYTES // ELEMENT_BYTES[element]
        raise ValueError(f"num_columns is {num_columns}; the limit for {element} is {limit}")
    # One vector a thread while that fits a small block, which hides latency best; then more vectors, then more threads.
    wanted = num_vectors if num_vectors <= 256 else max(256, -(-num_vectors // MAX_VECTORS))
    return -(-wanted // 32) * 32
