"""The gpu device on a GPU: the right tokens, the same bits in any company, steps queued ahead of their answers."""

from pathlib import Path

import numpy as np
import pytest

from cuda.devices.device import DeviceConfig
from cuda.gpu.backends.gpu import GpuBackend
from cuda.models.folder import prepare_model
from protocol.sampling import SamplingParams
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.shown import ShownGpuDevice
from tests.cuda.models.tiny import VARIANTS, VOCAB_SIZE, Variant, tiny_model
from tests.end_to_end.families import Workload, check_tokens

WORKLOAD = Workload(lengths=(1, 3, 20, 24, 25, 60), shared_length=48, output_len=30, step_tokens=32, pool_pages=36)
PROMPT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 90).tolist()


def on_gpu(config: DeviceConfig) -> ShownGpuDevice:
    return ShownGpuDevice(config, GpuBackend(0))


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tokens_are_those_of_transformers_whatever_happens_to_the_request(
    tmp_path: Path, variant: Variant, *, overlap: bool
) -> None:
    folder = tiny_model(tmp_path, variant)
    device = on_gpu(WORKLOAD.device_config(folder))
    check_tokens(WORKLOAD, folder, device, overlap=overlap, num_rounds=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_logits_are_the_same_bits_in_any_company_and_chunks(tmp_path: Path, dtype: str) -> None:
    folder = tiny_model(tmp_path, "qwen3")
    config = config_for(folder, dtype=dtype, batch_invariant=True, max_running=40, num_pages=400)
    driver = Driver(config, on_gpu(config))
    tokens, logits = driver.generate({0: PROMPT}, 10)[0]
    crowd = {slot: PROMPT[slot : 2 * slot] for slot in range(1, 39)}
    for prompts, chunk in (({**crowd, 39: PROMPT}, 90), ({39: PROMPT, 4: PROMPT[:3]}, 7)):
        again = driver.generate(prompts, 10, chunk=chunk)[39]
        assert again[0] == tokens
        np.testing.assert_array_equal(again[1], logits)
    driver.close()


def test_the_demo_says_and_draws_what_the_cpu_device_does() -> None:
    folder = prepare_model("demo")
    config = config_for(folder, max_running=32, num_pages=600, dtype="float32")
    cpu, gpu = Driver(config), Driver(config, on_gpu(config))
    prompts = {slot: list(range(1000 + slot, 1000 + 9 * slot + 10)) for slot in range(20)}
    found, expected = (driver.generate(prompts, 8, chunk=64) for driver in (gpu, cpu))
    for slot in prompts:
        assert found[slot][0] == expected[slot][0]
        for ours, theirs in zip(found[slot][1], expected[slot][1], strict=True):
            assert np.abs(ours - theirs).max() <= 1e-3 * np.ptp(theirs)
    drawn = [_drawn(driver) for driver in (gpu, cpu)]
    assert drawn[0] == drawn[1]
    cpu.close()
    gpu.close()


def _drawn(driver: Driver) -> list[int]:
    sampling = SamplingParams(max_tokens=9, temperature=0.8, top_p=0.9, top_k=50, presence_penalty=0.5, seed=4)
    driver.start(3, [7, 8, 9], sampling=sampling)
    tokens = [driver.step([(3, 0, 3, True)])[0].token]
    return tokens + [driver.step([(3, 3 + i, 1, True)])[0].token for i in range(8)]
