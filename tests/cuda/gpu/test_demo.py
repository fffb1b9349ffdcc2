"""The demo model, whole, through the CUDA kernels in the emulator: the CPU device's greedy tokens."""

import time

import numpy as np
import tokenizers

from cuda.models.folder import prepare_model
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.devices.emulated import emulated_driver
from tests.cuda.kernels.combinations import needs_compiler

NEW_TOKENS = 8


@needs_compiler
def test_greedy_tokens_are_the_cpu_devices() -> None:
    folder = prepare_model("demo")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("The scheduler decides which rows share a step, and", add_special_tokens=False).ids
    config = config_for(folder, max_model_len=64, max_running=2, num_pages=8, max_step_tokens=16)
    cpu = Driver(config)
    expected = cpu.generate({0: prompt}, NEW_TOKENS)[0]
    cpu.close()
    driver = emulated_driver(folder, max_model_len=64, max_running=2, num_pages=8, max_step_tokens=16)
    begin = time.perf_counter()
    tokens, logits = driver.generate({0: prompt}, NEW_TOKENS)[0]
    print(f"{(time.perf_counter() - begin) / NEW_TOKENS:.2f} s a token")
    driver.close()
    assert tokens == expected[0]
    for ours, theirs in zip(logits, expected[1], strict=True):
        assert np.abs(ours - theirs).max() <= 1e-3 * np.ptp(theirs)
