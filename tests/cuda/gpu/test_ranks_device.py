"""A group of GPU ranks in the emulator against one device that holds the whole model: the same greedy text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda.collectives.peer_memory import PeerTimeout
from cuda.devices.device import DeviceConfig
from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.ranks import GroupDevice, greedy
from tests.cuda.devices.shown import ShownGpuDevice
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import VARIANTS, VOCAB_SIZE, Variant, tiny_model

pytestmark = needs_compiler

PROMPT = np.random.default_rng(4).integers(3, VOCAB_SIZE, 50).tolist()
PROMPTS = {0: PROMPT[:21], 3: PROMPT[:1], 5: PROMPT[9:18]}
NEW_TOKENS = 4
HEADS: dict[str, dict[str, Any]] = {
    "uneven": {"num_attention_heads": 6, "num_key_value_heads": 3},
    "replicated": {"num_attention_heads": 4, "num_key_value_heads": 1},
}


def group(config: DeviceConfig, world_size: int, mode: Mode = "fast", seed: int = 0) -> Driver:
    def rank_device(own: DeviceConfig) -> ShownGpuDevice:
        return ShownGpuDevice(
            own, EmulatedBackend(Settings(mode, seed + own.rank, device=own.rank), num_multiprocessors=2)
        )

    return Driver(config, GroupDevice(config, world_size, make=rank_device))


def assert_same(found: dict[int, Any], expected: dict[int, Any], tolerance: float = 1e-4) -> None:
    for slot, (tokens, logits) in expected.items():
        assert found[slot][0] == tokens
        assert np.abs(found[slot][1] - logits).max() <= tolerance * np.ptp(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_text_of_every_family_is_that_of_one_device(tmp_path: Path, variant: Variant) -> None:
    config = config_for(tiny_model(tmp_path, variant), max_model_len=128)
    expected = greedy(Driver(config), PROMPTS, NEW_TOKENS, chunk=16)
    assert_same(greedy(group(config, 2), PROMPTS, NEW_TOKENS, chunk=16), expected)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("world_size", [3, 4])
def test_uneven_and_replicated_heads_give_the_same_text(tmp_path: Path, heads: str, world_size: int) -> None:
    config = config_for(tiny_model(tmp_path, "qwen3", intermediate_size=160, **HEADS[heads]), max_model_len=128)
    expected = greedy(Driver(config), PROMPTS, NEW_TOKENS)
    assert_same(greedy(group(config, world_size), PROMPTS, NEW_TOKENS), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_mode_has_nothing_to_report(tmp_path: Path, dtype: str) -> None:
    config = config_for(tiny_model(tmp_path), max_model_len=128, dtype=dtype, max_running=4, num_pages=8)
    greedy(group(config, 2, "check", 3), {0: PROMPT[:21], 2: PROMPT[:3]}, 2, chunk=16)


def test_a_rank_that_runs_no_step_is_named(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path), max_model_len=128, peer_timeout_s=1.0)
    driver = group(config, 2)
    assert isinstance(driver.device, GroupDevice)
    start = RowStart(0, 1, 1, [5], 1, SamplingParams(max_tokens=1, temperature=0, seed=0))
    plan = StepPlan(1, 7, [start], [StepRow(0, 0, 1, samples=True, new_pages=(0,))])
    with pytest.raises(PeerTimeout, match=r"^rank 1 waited 1 s for rank 0 in exchange \d+ \(step 7\)$"):
        driver.device.ranks[1].execute(plan)
    driver.close()
