"""A case of a kernel: how large it is, and how its result is compared with its definition.

By the share of its tolerance that the worst element uses. Read `gpu` for the list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cuda.kernels.backend import Backend

Array = npt.NDArray[Any]
FLOAT, HALF = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Sizes:
    """How large a case is.

    Attributes:
        rows: T.
        columns: E; outputs of linear layers are some more, so that tiles are ragged.
        num_heads, num_kv_heads, head_dim: H, K, D.
        context: Positions of the longest request.
        vocab: V.
    """

    rows: int
    columns: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    vocab: int


@dataclass(frozen=True)
class Case:
    """`run` returns the share of its tolerance that the worst number uses: more than 1 is wrong."""

    name: str
    run: Callable[[Backend, torch.dtype, Sizes], float]
    dtypes: tuple[torch.dtype, ...] = (FLOAT, HALF)


def used_share(found: torch.Tensor | Array, right: Array, rtol: float, atol: float) -> float:
    """Largest |found - right| / (atol + rtol |right|): above 1 is wrong; infinite if a number is none."""
    values = found.cpu().double().numpy() if isinstance(found, torch.Tensor) else found.astype(np.float64)
    if values.shape != right.shape:
        raise ValueError(f"{values.shape} is not the shape {right.shape}")
    if not values.size:
        return 0.0
    share = float(np.max(np.abs(values - right) / (atol + rtol * np.abs(right))))
    return share if np.isfinite(share) else float("inf")


def equal_share(found: torch.Tensor | Array, right: torch.Tensor | Array) -> float:
    """0 if all elements are equal, else infinite."""
    left, other = (each.cpu().float().numpy() if isinstance(each, torch.Tensor) else each for each in (found, right))
    return 0.0 if np.array_equal(left, other) else float("inf")
