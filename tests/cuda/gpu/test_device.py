"""The gpu device in the emulator: the CPU device's tokens from the same plans, whatever else is on its way."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.device import GpuDevice
from cuda.gpu.stages import Stages
from cuda.models.spec import UnsupportedModel
from protocol.sampling import SamplingParams
from protocol.step import RowStart, SampledRow, StepPlan, StepRow
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.emulated import emulated_device, emulated_driver
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import VOCAB_SIZE, tiny_model

pytestmark = needs_compiler

PROMPT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 70).tolist()
DRAWS = [
    SamplingParams(max_tokens=9, temperature=1.0, seed=1),
    SamplingParams(max_tokens=9, temperature=0.7, top_k=20, top_p=0.9, seed=2**63 - 1),
    SamplingParams(max_tokens=9, temperature=1.5, min_p=0.02, repetition_penalty=1.3, seed=3, logprobs=2),
    SamplingParams(max_tokens=9, temperature=0, presence_penalty=2, frequency_penalty=2, logprobs=0, seed=0),
    SamplingParams(max_tokens=9, temperature=1, logit_bias={2: 100.0, 7: 95.0}, min_tokens=3, logprobs=20, seed=5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    driver = emulated_driver(folder)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def cpu(folder: Path) -> Iterator[Driver]:
    driver = Driver(config_for(folder, max_model_len=128))
    yield driver
    driver.close()


def drawn(driver: Driver, slots: Sequence[int], samplings: Sequence[SamplingParams], count: int) -> Any:
    """Rows that all requests of one prompt draw side by side, step by step."""
    for slot, sampling in zip(slots, samplings, strict=True):
        driver.start(slot, PROMPT[: 10 + slot], sampling=sampling)
    prefill = driver.step([(slot, 0, 10 + slot, True) for slot in slots])
    return [prefill, *(driver.step([(slot, 10 + slot + i, 1, True) for slot in slots]) for i in range(count - 1))]


def test_greedy_tokens_and_logits_are_the_cpu_devices(driver: Driver, cpu: Driver) -> None:
    prompts = {0: PROMPT, 3: PROMPT[:1], 1: PROMPT[5:40], 7: PROMPT[2:9]}
    found, expected = (device.generate(prompts, 4, chunk=33) for device in (driver, cpu))
    for slot in prompts:
        assert found[slot][0] == expected[slot][0]
        np.testing.assert_allclose(found[slot][1], expected[slot][1], atol=1e-4)


def test_the_same_seeds_draw_the_cpu_devices_tokens_with_close_logprobs(driver: Driver, cpu: Driver) -> None:
    slots = [5, 0, 2, 6, 4]
    found, expected = (drawn(device, slots, DRAWS, 5) for device in (driver, cpu))
    for ours, theirs in zip(found, expected, strict=True):
        assert [(row.slot, row.request, row.token) for row in ours] == [
            (row.slot, row.request, row.token) for row in theirs
        ]
        for one, other in zip(ours, theirs, strict=True):
            assert_close_logprobs(one, other)
    assert [row[4].token == 2 for row in found] == [False, False, False, True, True]


def assert_close_logprobs(ours: SampledRow, theirs: SampledRow) -> None:
    if ours.logprob is None or theirs.logprob is None:
        assert ours.logprob == theirs.logprob
        return
    assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=1e-4)
    assert [top.token for top in ours.logprob.top] == [top.token for top in theirs.logprob.top]
    np.testing.assert_allclose(
        [top.logprob for top in ours.logprob.top], [top.logprob for top in theirs.logprob.top], atol=1e-4
    )


def test_a_restart_with_output_tokens_continues_the_same_draw(driver: Driver) -> None:
    sampling = SamplingParams(max_tokens=9, temperature=1.5, seed=11, presence_penalty=0.5, min_tokens=8)
    driver.start(2, PROMPT[:20], sampling=sampling)
    whole = [driver.step([(2, 0, 20, True)])[0].token]
    whole += [driver.step([(2, 20 + i, 1, True)])[0].token for i in range(4)]
    driver.start(5, PROMPT[:20], output=whole[:3], sampling=sampling)
    resumed = [driver.step([(5, 0, 23, True)])[0].token, driver.step([(5, 23, 1, True)])[0].token]
    assert resumed == whole[3:]
    assert len(set(whole)) > 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_logits_are_the_same_bits_in_any_company_and_chunks(folder: Path, dtype: str) -> None:
    driver = emulated_driver(folder, dtype=dtype, batch_invariant=True, max_running=10)
    prompt = PROMPT[:20]
    tokens, logits = driver.generate({0: prompt}, 2)[0]
    crowd = {slot: PROMPT[slot : 2 * slot] for slot in range(1, 9)}
    for slots, chunk in (({**crowd, 9: prompt}, 20), ({9: prompt, 4: PROMPT[:3]}, 7)):
        again = driver.generate(slots, 2, chunk=chunk)[9]
        assert again[0] == tokens
        np.testing.assert_array_equal(again[1], logits)
    driver.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_mode_has_nothing_to_report(folder: Path, dtype: str) -> None:
    driver = emulated_driver(folder, "check", 3, dtype=dtype, max_running=4, num_pages=8)
    driver.generate({0: PROMPT[:21], 2: PROMPT[:3]}, 2, chunk=16)
    driver.close()


def test_a_replayed_graph_computes_what_the_eager_pass_computes(driver: Driver) -> None:
    device = driver.device
    assert isinstance(device, GpuDevice)
    prompts = {slot: PROMPT[slot : 5 + slot] for slot in range(3)}
    replayed = driver.generate(prompts, 3)
    graphs, device._running.runner._graphs = device._running.runner._graphs, {}
    eager = driver.generate(prompts, 3)
    device._running.runner._graphs = graphs
    assert graphs
    for slot in prompts:
        np.testing.assert_array_equal(replayed[slot][1], eager[slot][1])


def test_a_long_step_is_computed_in_more_passes_than_there_are_stages(folder: Path, cpu: Driver) -> None:
    small = emulated_driver(folder, max_step_tokens=24)
    found, expected = (_long_step(device) for device in (small, cpu))
    assert found == expected
    small.close()


def _long_step(driver: Driver) -> list[int]:
    for slot in range(3):
        driver.start(slot, PROMPT[slot:], sampling=DRAWS[0])
    rows = driver.step([(slot, 0, 70 - slot, True) for slot in range(3)])
    rows += driver.step([(slot, 70 - slot, 1, True) for slot in range(3)])
    return [row.token for row in rows]


def test_a_shared_prefix_is_read_from_the_other_rows_pages(driver: Driver) -> None:
    expected = driver.generate({0: PROMPT}, 2)
    driver.start(1, PROMPT, shared_pages=driver.pages[0][:4])
    tokens = [driver.step([(1, 64, 6, True)])[0].token, driver.step([(1, 70, 1, True)])[0].token]
    assert tokens == expected[0][0]


class HeldBackend(EmulatedBackend):
    """Its stream stands still, from `hold` until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()

    def hold(self) -> None:
        self.gate.clear()
        self._stream.submit(lambda _ticket: self.gate.wait(10))


def plans_of_changing_rows() -> list[StepPlan]:
    """A prefill of 3 slots, then decodes of some of them: each step's arrays differ from those of the others."""
    lengths = dict.fromkeys(range(3), 0)
    plans = []
    for step, slots in enumerate([(0, 1, 2), (2, 0), (1,), (2, 1, 0), (0,), (1, 2)]):
        starts = [] if step else [RowStart(slot, slot, 1, PROMPT[slot : 9 + slot], 9, DRAWS[0]) for slot in slots]
        rows = [StepRow(slot, lengths[slot], 1 if step else 9, True, () if step else (slot,)) for slot in slots]
        lengths |= {row.slot: row.start + row.count for row in rows}
        plans.append(StepPlan(1, step, starts, rows))
    return plans


@pytest.mark.parametrize("is_careless", [False, True])
def test_steps_queued_at_once_come_out_as_if_alone_unless_a_stage_is_reused_too_early(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_careless: bool
) -> None:
    backend = HeldBackend()
    device = GpuDevice(config_for(folder, max_model_len=128, num_pages=8), backend)
    device.load(lambda _done: None)
    plans = plans_of_changing_rows()
    expected = [device.execute(plan).rows for plan in plans]
    if is_careless:
        monkeypatch.setattr(Stages, "take", lambda stages: stages._stages[0])
    found = []
    for first in range(0, len(plans), 2):
        backend.hold()
        for plan in plans[first : first + 2]:
            device.submit(plan)
        assert device.poll() is None
        backend.gate.set()
        found += [device.wait().rows, device.wait().rows]
    assert (found == expected) is not is_careless
    device.close()


def test_a_slot_taken_over_while_its_step_runs_keeps_their_answers_apart(folder: Path, cpu: Driver) -> None:
    backend = HeldBackend()
    device = GpuDevice(config_for(folder, max_model_len=128, num_pages=8), backend)
    device.load(lambda _done: None)
    plans = [
        StepPlan(1, step, [RowStart(0, 40 + step, step, prompt, 9, DRAWS[step])], [StepRow(0, 0, 9, True, (step,))])
        for step, prompt in enumerate([PROMPT[:9], PROMPT[9:18]])
    ]
    expected = [cpu.device.execute(plan).rows for plan in plans]
    backend.hold()
    for plan in plans:
        device.submit(plan)
    backend.gate.set()
    assert [device.wait().rows, device.wait().rows] == expected
    assert [row.request for rows in expected for row in rows] == [40, 41]
    device.close()


def test_what_fails_on_the_device_is_raised_where_the_step_is_waited_for(folder: Path) -> None:
    backend = HeldBackend()
    device = GpuDevice(config_for(folder, max_model_len=128, num_pages=8), backend)
    device.load(lambda _done: None)

    def fail(_ticket: int) -> None:
        raise RuntimeError("an illegal memory access")

    backend._stream.submit(fail)
    device.submit(plans_of_changing_rows()[0])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.wait()
    device.close()


def test_a_row_without_pages_is_refused(driver: Driver) -> None:
    driver.start(0, PROMPT)
    with pytest.raises(ValueError, match="slot 0 computes up to token 17 with 1 pages"):
        driver.device.execute(StepPlan(1, 1, driver._starts, [StepRow(0, 0, 17, samples=True, new_pages=(3,))]))
    driver._starts = []


def test_models_and_settings_that_kernels_do_not_take_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    device = emulated_device(config_for(tiny_model(tmp_path, head_dim=80)))
    with pytest.raises(UnsupportedModel, match=r"cannot take this model: head_dim is 80; .* 64, 96, 128, 256$"):
        device.load(lambda _done: None)
    device.close()
    quantized = emulated_device(config_for(folder, quantization="int8"))
    with pytest.raises(UnsupportedModel, match="int8 is for cpu devices only"):
        quantized.load(lambda _done: None)
    quantized.close()


def test_without_a_dtype_the_checkpoints_is_taken(folder: Path, driver: Driver) -> None:
    weights_bytes = driver.pool.weights_bytes
    assert driver.pool.kv_bytes == 64 * 2 * 2 * 16 * 64 * 4  # pages, layers, keys and values, S, K·D, float32
    half = emulated_driver(folder, dtype="bfloat16", max_running=2)
    assert (half.pool.weights_bytes, half.pool.kv_bytes) == (weights_bytes // 2, driver.pool.kv_bytes // 2)
    half.close()


def test_more_new_pages_than_a_pass_has_room_for_travel_before_it(
    folder: Path, cpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda.gpu.loading.MAX_UPDATES", 2)
    narrow = emulated_driver(folder, max_running=3)
    prompts = {slot: PROMPT[slot:] for slot in range(3)}
    found, expected = (device.generate(prompts, 1) for device in (narrow, cpu))
    assert [found[slot][0] for slot in prompts] == [expected[slot][0] for slot in prompts]
    narrow.close()
