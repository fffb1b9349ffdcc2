"""The ways in which every kernel is run in the emulator, and how tensors get there and back."""

import shutil

import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels.backend import Backend

COMBINATIONS: list[tuple[Mode, int]] = [
    ("fast", 0),
    ("fast", 1),
    ("fast", 2),
    ("check", 0),
    ("check", 3),
    ("check", 4),
]
each_way = pytest.mark.parametrize(("mode", "seed"), COMBINATIONS)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def emulated(mode: Mode = "fast", seed: int = 0, num_multiprocessors: int = 4) -> EmulatedBackend:
    return EmulatedBackend(Settings(mode=mode, seed=seed), num_multiprocessors=num_multiprocessors)


def on_device(backend: Backend, values: torch.Tensor) -> torch.Tensor:
    """A copy in the backend's memory."""
    tensor = backend.empty(values.shape, values.dtype)
    backend.copy(tensor, values)
    return tensor
