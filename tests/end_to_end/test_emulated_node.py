"""A real node whose worker runs the CUDA kernels in the emulator: several streams at once, over a socket."""

from pathlib import Path

import numpy as np
import torch

from tests.cuda.devices.emulated import small_model
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import VOCAB_SIZE, reference_model
from tests.end_to_end.running_node import running_node
from tests.end_to_end.test_same_text import OUTPUT_LEN, outputs

FLAGS = ("--devices", "emu:0", "--max-running", "8", "--step-tokens", "32", "--max-model-len", "128")


@needs_compiler
async def test_streams_of_a_node_on_the_emulator_say_what_transformers_says(tmp_path: Path) -> None:
    folder = small_model(tmp_path, "qwen3")
    prompts = [np.random.default_rng(length).integers(3, VOCAB_SIZE, length).tolist() for length in (5, 40, 1)]
    model = reference_model(folder)
    expected = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        whole = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=OUTPUT_LEN, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        expected.append(whole[0, len(prompt) :].tolist())
    with running_node("--model", str(folder), *FLAGS) as node:
        assert await outputs(node, prompts) == expected
        await node.becomes_idle()
        assert node.metric("step_gap_seconds_count") > 0
        assert node.stop() == 0
