"""A group of CPU ranks against one device that holds the whole model: the same greedy text, nearly the same logits."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda.collectives.peer_memory import PeerTimeout
from cuda.cpu.device import CpuDevice
from cuda.cpu.kernels.memory import address
from cuda.cpu.kernels.program import ADD_RMS_NORM, EMBED, LINEAR, MEET, SUM_PARTS
from cuda.devices.device import DeviceConfig
from cuda.models.folder import prepare_model
from cuda.models.spec import UnsupportedModel
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.ranks import GroupDevice, greedy, group_driver
from tests.cuda.models.tiny import VARIANTS, VOCAB_SIZE, Variant, tiny_model

RANDOM = np.random.default_rng(3)
PROMPTS = {
    slot: RANDOM.integers(3, VOCAB_SIZE, length).tolist() for slot, length in {0: 40, 3: 1, 5: 17, 6: 90}.items()
}
NEW_TOKENS = 10
FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps shared memory
HEADS: dict[str, dict[str, Any]] = {
    "uneven": {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32},
    "replicated": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32},
}


def assert_same(found: dict[int, Any], expected: dict[int, Any], tolerance: float = 1e-4) -> None:
    assert {slot: tokens for slot, (tokens, _) in found.items()} == {
        slot: tokens for slot, (tokens, _) in expected.items()
    }
    for slot, (_, logits) in expected.items():
        assert np.abs(found[slot][1] - logits).max() <= tolerance * np.ptp(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_text_of_every_family_is_that_of_one_device(tmp_path: Path, variant: Variant) -> None:
    config = config_for(tiny_model(tmp_path, variant))
    expected = greedy(Driver(config), PROMPTS, NEW_TOKENS, chunk=32)
    for world_size in (2, 3, 4):
        assert_same(greedy(group_driver(config, world_size), PROMPTS, NEW_TOKENS, chunk=32), expected)


@pytest.mark.parametrize("heads", HEADS)
def test_uneven_and_replicated_heads_give_the_same_text(tmp_path: Path, heads: str) -> None:
    config = config_for(tiny_model(tmp_path, "qwen3", intermediate_size=160, **HEADS[heads]))
    expected = greedy(Driver(config), PROMPTS, NEW_TOKENS)
    for world_size in (2, 3, 4):
        assert_same(greedy(group_driver(config, world_size), PROMPTS, NEW_TOKENS), expected)


@pytest.mark.parametrize("form", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_bfloat16_and_quantised_shards_are_cut_from_the_same_values(tmp_path: Path, form: dict[str, str]) -> None:
    config = config_for(tiny_model(tmp_path, "llama_untied", head_dim=32), **form)
    expected = greedy(Driver(config), PROMPTS, NEW_TOKENS)
    # Keys and values in bfloat16 round what the ranks' sums left different in the last bit.
    tolerance = 0.02 if "dtype" in form else 1e-4
    for world_size in (2, 3):
        assert_same(greedy(group_driver(config, world_size), PROMPTS, NEW_TOKENS), expected, tolerance)


def demo_config(**overrides: Any) -> DeviceConfig:
    return config_for(prepare_model("demo"), num_pages=40, **overrides)


def demo_prompts(count: int) -> dict[int, list[int]]:
    return {slot: [*range(400 + 7 * slot, 440 + 11 * slot)] for slot in range(count)}


def test_two_ranks_write_what_the_demo_model_writes() -> None:
    expected = greedy(Driver(demo_config()), demo_prompts(2), 4)
    assert_same(greedy(group_driver(demo_config(), 2), demo_prompts(2), 4), expected)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_any_number_of_ranks_writes_what_the_demo_model_writes(quantization: str) -> None:
    config = demo_config(quantization=quantization)
    expected = greedy(Driver(config), demo_prompts(6), 24)
    for world_size in (2, 3, 4):
        assert_same(greedy(group_driver(config, world_size), demo_prompts(6), 24), expected)


def test_a_ranks_logits_are_the_same_bits_whatever_the_batch_the_chunks_and_the_threads(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "qwen3"))
    alone = greedy(group_driver(config, 2), {6: PROMPTS[6]}, NEW_TOKENS)[6][1]
    in_passes = replace(config, max_step_tokens=16)
    for driver, prompts, chunk in (
        (group_driver(config, 2), PROMPTS, 7),
        (Driver(in_passes, GroupDevice(in_passes, 2, num_threads=3)), {6: PROMPTS[6]}, 64),
    ):
        np.testing.assert_array_equal(greedy(driver, prompts, NEW_TOKENS, chunk)[6][1], alone)


def test_every_rank_draws_the_same_random_token_with_the_same_log_probabilities(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "llama"))
    sampling = SamplingParams(max_tokens=9, temperature=1.2, top_p=0.9, seed=11, presence_penalty=0.5, logprobs=3)
    drawn = []
    for driver in (Driver(config), group_driver(config, 3)):  # a group's ranks are compared at every step
        driver.start(2, PROMPTS[0], sampling=sampling)
        rows = driver.step([(2, 0, 40, True)])
        for position in range(40, 48):
            rows += driver.step([(2, position, 1, True)])
        drawn.append(rows)
        driver.close()
    assert [row.token for row in drawn[1]] == [row.token for row in drawn[0]]
    for found, right in zip(*drawn[::-1], strict=True):
        assert found.logprob is not None
        assert right.logprob is not None
        assert found.logprob.logprob == pytest.approx(right.logprob.logprob, abs=1e-3)


def test_each_rank_keeps_the_pages_of_its_own_heads_only(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "qwen3", **HEADS["uneven"]))
    group = GroupDevice(config, 2)
    group.load(lambda _done: None)
    assert [pool.num_pages for pool in group.pools] == [64, 64]
    assert [pool.kv_bytes for pool in group.pools] == [64 * 2 * 2 * heads * 16 * 32 * 4 for heads in (2, 1)]
    group.close()


def test_a_model_too_small_for_the_ranks_is_refused(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "llama"), rank=4, world_size=5)
    with pytest.raises(UnsupportedModel, match="the model has 4 query heads: 5 ranks cannot each hold one"):
        CpuDevice(config).load(lambda _done: None)


def test_a_peer_that_stays_away_is_named_with_the_step(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "llama"), peer_timeout_s=0.1)
    group = GroupDevice(config, 2)
    group.load(lambda _done: None)
    start = RowStart(0, 0, 0, PROMPTS[5], len(PROMPTS[5]), SamplingParams(max_tokens=1, temperature=0, seed=0))
    row = StepRow(0, 0, 17, samples=True, new_pages=(0, 1))
    with pytest.raises(PeerTimeout, match=r"^rank 0 waited 0\.1 s for rank 1 in exchange 1 of 6 of step 5$"):
        group.ranks[0].execute(StepPlan(1, 5, [start], [row]))
    group.close()


def test_a_peer_that_never_opens_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    config = config_for(tiny_model(tmp_path, "llama"), peer_timeout_s=0.1)
    ranks = [CpuDevice(replace(config, rank=rank, world_size=2)) for rank in range(2)]
    for rank in ranks:
        rank.load(lambda _done: None)
    with pytest.raises(PeerTimeout, match=r"rank 0 waited 0\.1 s for rank 1 in exchange 1 of 6 of step 0"):
        ranks[0].open_peers([rank.export() for rank in ranks])
    for rank in ranks:
        rank.close()
    assert not list(FOLDER.glob(f"tokenstage-*-{os.getpid()}-*"))


def test_a_world_of_one_has_nothing_to_show_and_nobody_to_meet(tmp_path: Path) -> None:
    device = CpuDevice(config_for(tiny_model(tmp_path, "llama")))
    device.load(lambda _done: None)
    assert device.export() == b""
    device.open_peers([b""])
    device.close()


def test_no_pass_writes_a_part_again_before_all_ranks_have_met_after_reading_it(tmp_path: Path) -> None:
    """The recorded instructions of two passes, one after the other, whatever the time ranks take for them."""
    group = GroupDevice(config_for(tiny_model(tmp_path, "llama")), 2)
    group.load(lambda _done: None)
    first = group.ranks[0]
    assert isinstance(first, CpuDevice)
    loaded = first._loaded
    assert loaded is not None
    assert loaded.state.ranks is not None
    written = {loaded.state.ranks.own_part(index): index for index in range(2)}
    tables = {address(parts): index for index, parts in enumerate(loaded.state.ranks.parts)}
    always = loaded.state.batch.num_tokens_at
    is_free, is_read = [True, True], [True, True]
    num_writes = 0
    for operation, *fields in loaded.program._recorded * 2:
        if operation in (LINEAR, EMBED):
            for index in {written[field] for field in fields if field in written}:
                assert is_free[index]
                is_free[index] = is_read[index] = False
                num_writes += 1
        elif operation == MEET and fields[0] == always:
            is_free = list(is_read)
        elif operation in (ADD_RMS_NORM, SUM_PARTS):
            for index in {tables[field] for field in fields if field in tables}:
                is_read[index] = True
    assert num_writes == 2 * (1 + 2 * 2)
    group.close()
