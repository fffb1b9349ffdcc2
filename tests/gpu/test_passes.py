"""Whole passes of the gpu device: captured against eager, and bfloat16 against float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.shown import ShownGpuDevice
from tests.cuda.models.tiny import VOCAB_SIZE, tiny_model
from tests.gpu.conftest import Place

PROMPT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 60).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


def generated(place: Place, folder: Path, dtype: str, num_rows: int, *, captured: bool = True) -> dict[int, Any]:
    """By slot: the tokens drawn, and the logits of each."""
    config = config_for(folder, dtype=dtype, max_running=num_rows, max_model_len=128, num_pages=8 * num_rows)
    device = ShownGpuDevice(config, place.open())
    driver = Driver(config, device)
    if not captured:
        device._running.runner._graphs = {}
    found = driver.generate({slot: PROMPT[: 3 + slot] for slot in range(num_rows)}, 4)
    driver.close()
    return found


@pytest.mark.parametrize(("num_rows", "dtype"), [(3, "bfloat16"), (3, "float32"), (20, "float32")])
def test_captured_passes_give_what_eager_ones_do(place: Place, folder: Path, num_rows: int, dtype: str) -> None:
    graphs, eager = (generated(place, folder, dtype, num_rows, captured=captured) for captured in (True, False))
    for slot, (tokens, logits) in graphs.items():
        assert tokens == eager[slot][0]
        # More rows than our GEMV takes: the library may choose another algorithm within a capture.
        np.testing.assert_allclose(logits, eager[slot][1], rtol=0, atol=0 if num_rows <= 8 else 1e-3)


def test_bfloat16_is_close_to_float32(place: Place, folder: Path) -> None:
    half, full = (generated(place, folder, dtype, 3) for dtype in ("bfloat16", "float32"))
    for slot, (_, logits) in full.items():
        error = np.abs(half[slot][1][0] - logits[0]).max()
        assert error <= 0.03 * np.ptp(logits[0])
