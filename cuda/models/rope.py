"""Rotary positions as one table, computed the way transformers does it, in float32: the same angles to the last bit.

The llama3 and linear scalings are folded into the frequencies, so kernels know nothing of them.
"""

import math

import torch

from cuda.models.spec import ModelSpec, RopeScaling


def rope_table(spec: ModelSpec, num_positions: int) -> torch.Tensor:
    """[num_positions, D] float32: cosines of the D / 2 angles of each position, then their sines."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    if spec.rope_scaling is not None:
        frequencies = _scaled(frequencies, spec.rope_scaling)
    angles = torch.arange(num_positions).float()[:, None] * frequencies[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended.
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_max_position / scaling.high_freq_factor
    shortest_stretched = scaling.original_max_position / scaling.low_freq_factor
    blend = (scaling.original_max_position / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelengths > shortest_stretched, frequencies / scaling.factor, frequencies)
    between = (wavelengths >= longest_kept) & (wavelengths <= shortest_stretched)
    return torch.where(between, blended, stretched)
