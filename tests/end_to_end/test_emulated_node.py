"""A real node whose worker runs the CUDA kernels in the emulator: several streams at once, over a socket."""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import VOCAB_SIZE, reference_model, tiny_model
from tests.end_to_end.running_node import running_node
from tests.end_to_end.test_groups import ends_after
from tests.end_to_end.test_same_text import OUTPUT_LEN, outputs

FLAGS = ("--max-running", "8", "--step-tokens", "32", "--max-model-len", "128")
RANKS = ("--devices", "emu:0,emu:1", "--tp", "2")
TIMEOUT_S = 2.0


@needs_compiler
@pytest.mark.parametrize("devices", [("--devices", "emu:0"), RANKS], ids=["one", "two ranks"])
async def test_streams_of_a_node_on_the_emulator_say_what_transformers_says(
    tmp_path: Path, devices: tuple[str, ...]
) -> None:
    folder = tiny_model(tmp_path, "qwen3")
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
    with running_node("--model", str(folder), *devices, *FLAGS) as node:
        assert await outputs(node, prompts) == expected
        await node.becomes_idle()
        assert node.metric("step_gap_seconds_count") > 0
        assert node.stop() == 0


@needs_compiler
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_rank_that_is_killed_or_stopped_ends_the_streams_typed(tmp_path: Path, fault: signal.Signals) -> None:
    folder, flags = tiny_model(tmp_path), ("--max-model-len", "512", "--peer-timeout", f"{TIMEOUT_S}")
    with running_node("--model", str(folder), *RANKS, *flags) as node:
        assert await ends_after(node, "worker:1", fault, max_tokens=500) < TIMEOUT_S + 5
        assert await asyncio.to_thread(node.process.wait, 20) == 1
        assert "rank 0 waited 2 s for rank 1 in exchange" in node.log.read_text()
