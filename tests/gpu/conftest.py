"""Tests of a GPU: where there is none, each is skipped with the reason, but for those that run in the emulator too.

A test that takes `place` runs twice: in the emulator on small shapes, so that nothing here waits for hardware to be
found broken, and on the GPU on large ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from cuda.check.cases.case import Sizes
from cuda.check.cases.gpu import SMALL
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.backends.gpu import GpuBackend, check_gpu
from cuda.gpu.backends.nvrtc import MissingPart
from cuda.kernels.backend import Backend
from tests.cuda.kernels.combinations import needs_compiler

HERE = Path(__file__).parent
LARGE = Sizes(rows=300, columns=4096, num_heads=32, num_kv_heads=8, head_dim=128, context=5000, vocab=32_000)
"""Shapes of an 8B Llama; a vocabulary that the definition draws from in seconds."""


@dataclass(frozen=True)
class Place:
    """Where a test runs, and how large."""

    device: str
    """`cuda:0` or `emu:0`."""
    sizes: Sizes

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def open(self) -> Backend:
        """A new backend."""
        return GpuBackend(0) if self.is_gpu else EmulatedBackend()


PLACES = (
    pytest.param(Place("emu:0", SMALL), id="emulated", marks=needs_compiler),
    pytest.param(Place("cuda:0", LARGE), id="gpu", marks=pytest.mark.gpu),
)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param
    return found


@pytest.fixture(scope="module")
def backend(place: Place) -> Iterator[Backend]:
    backend = place.open()
    yield backend
    backend.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if "place" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") is not None and (missing := _what_is_missing()) is not None:
            item.add_marker(pytest.mark.skip(reason=missing))


@cache
def _what_is_missing() -> str | None:
    try:
        check_gpu(0)
    except MissingPart as missing:
        return str(missing)
    return None
