"""How a result is compared with its definition: by the share of its tolerance that the worst element uses."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


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
