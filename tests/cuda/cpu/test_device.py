"""The CPU device as a worker uses it: slots, pages, restarts, and results that depend on the request alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cuda.cpu.device import CpuDevice
from protocol.sampling import SamplingParams
from protocol.step import StepPlan, StepRow
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.models.tiny import VOCAB_SIZE, tiny_model

PROMPT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    driver = Driver(config_for(folder))
    yield driver
    driver.close()


@pytest.mark.parametrize("form", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_logits_are_the_same_bits_whatever_the_batch_and_the_chunks(folder: Path, form: dict[str, str]) -> None:
    driver = Driver(config_for(folder, **form))
    tokens, logits = driver.generate({0: PROMPT}, 10)[0]
    others = {slot: PROMPT[slot : 20 + 5 * slot] for slot in range(1, 8)}
    for chunk in (1, 7, 16, 64):
        again = driver.generate({**others, 0: PROMPT}, 10, chunk=chunk)[0]
        assert again[0] == tokens
        np.testing.assert_array_equal(again[1], logits)
    driver.close()


def test_thread_count_does_not_change_a_bit(folder: Path, driver: Driver) -> None:
    single = Driver(config_for(folder, num_threads=1))
    np.testing.assert_array_equal(single.generate({0: PROMPT}, 6)[0][1], driver.generate({0: PROMPT}, 6)[0][1])
    single.close()


def test_a_long_step_is_computed_in_passes(folder: Path, driver: Driver) -> None:
    small = Driver(config_for(folder, max_step_tokens=16))
    prompts = {slot: PROMPT[slot:] for slot in range(3)}
    expected = driver.generate(prompts, 4)
    found = small.generate({0: PROMPT}, 4, chunk=70)
    np.testing.assert_array_equal(found[0][1], expected[0][1])
    small.close()


def test_a_shared_prefix_is_read_from_the_other_rows_pages(driver: Driver) -> None:
    expected = driver.generate({0: PROMPT}, 5)
    driver.start(1, PROMPT, shared_pages=driver.pages[0][:4])
    tokens = [driver.step([(1, 64, 6, True)])[0].token]
    tokens += [driver.step([(1, 70 + i, 1, True)])[0].token for i in range(4)]
    assert tokens == expected[0][0]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_restart_with_output_tokens_continues_the_same_draw(driver: Driver, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=9, temperature=temperature, seed=11, presence_penalty=0.5, min_tokens=8)
    driver.start(2, PROMPT[:20], sampling=sampling)
    whole = [driver.step([(2, 0, 20, True)])[0].token]
    whole += [driver.step([(2, 20 + i, 1, True)])[0].token for i in range(8)]
    driver.start(5, PROMPT[:20], output=whole[:4], sampling=sampling)
    resumed = [driver.step([(5, 0, 24, True)])[0].token]
    resumed += [driver.step([(5, 24 + i, 1, True)])[0].token for i in range(4)]
    assert resumed == whole[4:]
    assert temperature == 0 or len(set(whole)) > 4


def test_results_name_slot_request_and_incarnation_in_plan_order(driver: Driver) -> None:
    for slot in (6, 3):
        driver.start(slot, PROMPT[:4])
    rows = driver.step([(6, 0, 4, True), (3, 0, 2, False)])
    assert [(row.slot, row.request, row.incarnation) for row in rows] == [(6, 106, 1)]
    rows = driver.step([(6, 4, 1, True), (3, 2, 2, True)])
    assert [(row.slot, row.request) for row in rows] == [(6, 106), (3, 103)]
    assert all(row.logprob is None for row in rows)


def test_logprobs_come_with_the_token_when_asked(driver: Driver) -> None:
    sampling = SamplingParams(max_tokens=1, temperature=0, seed=0, logprobs=3)
    driver.start(0, PROMPT, sampling=sampling)
    row = driver.step([(0, 0, 70, True)])[0]
    assert row.logprob is not None
    assert row.logprob.top[0].token == row.token == row.logprob.token
    logits = driver.device.logits[0].astype(np.float64)
    assert row.logprob.logprob == pytest.approx(
        logits.max() - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    )
    driver.start(0, PROMPT, sampling=SamplingParams(max_tokens=1, temperature=0, seed=0, logprobs=0))
    bare = driver.step([(0, 0, 70, True)])[0].logprob
    assert bare is not None
    assert bare.top == []


def test_end_tokens_wait_for_min_tokens(driver: Driver) -> None:
    bias = {2: 100.0}  # the model's end-of-sequence token
    sampling = SamplingParams(max_tokens=5, temperature=0, seed=0, logit_bias=bias, min_tokens=2)
    driver.start(0, PROMPT, sampling=sampling)
    drawn = [driver.step([(0, 0, 70, True)])[0].token]
    drawn += [driver.step([(0, 70 + i, 1, True)])[0].token for i in range(2)]
    assert [token == 2 for token in drawn] == [False, False, True]


def test_an_overlapped_decode_row_reads_the_token_just_drawn(driver: Driver) -> None:
    expected = driver.generate({0: PROMPT}, 3)[0][0]
    driver.start(4, PROMPT)
    drawn = [driver.step([(4, start, count, True)])[0].token for start, count in ((0, 70), (70, 1), (71, 1))]
    assert drawn == expected


def test_a_row_without_pages_is_refused(folder: Path) -> None:
    driver = Driver(config_for(folder))
    driver.start(0, PROMPT)
    with pytest.raises(ValueError, match="slot 0 computes up to token 17 with 1 pages"):
        driver.device.execute(StepPlan(1, 1, driver._starts, [StepRow(0, 0, 17, samples=True, new_pages=(3,))]))
    driver.close()


def test_the_pool_sizes_itself(folder: Path) -> None:
    device = CpuDevice(config_for(folder, num_pages=None))
    seen: list[float] = []
    pool = device.load(seen.append)
    assert pool.num_pages == 8 * 256 // 16
    assert pool.kv_bytes == pool.num_pages * 2 * 2 * 2 * 16 * 32 * 4
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    device.close()
    memory = CpuDevice(config_for(folder, num_pages=None, kv_memory=100_000))
    assert memory.load(seen.append).num_pages == 100_000 // (2 * 2 * 2 * 16 * 32 * 4)
    memory.close()
    with pytest.raises(ValueError, match="a KV page needs 16384 bytes; the pool was given 100"):
        CpuDevice(config_for(folder, num_pages=None, kv_memory=100)).load(seen.append)
