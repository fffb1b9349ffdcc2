"""Scheduler and CPU device together on tiny models of every family: chunks, full batches, prefix hits, preemption.

The right tokens are transformers' greedy ones, request by request.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.scheduler import Scheduler
from cuda.devices.cpu import CpuDevice
from cuda.devices.device import DeviceConfig
from cuda.models.folder import read_model_info
from protocol.messages import RequestFinished, Submit
from protocol.sampling import SamplingParams
from tests.cuda.models.tiny import VARIANTS, VOCAB_SIZE, Variant, reference_model, tiny_model
from tests.end_to_end.one_thread import run

PAGE_SIZE = 4
STEP_TOKENS = 32
OUTPUT_LEN = 30
POOL_PAGES = 36  # two of the longer requests and some short ones: the batch outgrows it while it decodes


def prompts() -> list[list[int]]:
    """Shorter and longer than a chunk; three begin with the same two chunks."""
    generator = torch.Generator().manual_seed(5)
    shared, *others = [
        torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (48, 1, 3, 20, 24, 25, 60)
    ]
    return [*others, [*shared, 7, 8, 9], [*shared, 10], shared]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt])
    for _ in range(OUTPUT_LEN):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    output: list[int] = tokens[0, len(prompt) :].tolist()
    return output


def submit(number: int, prompt: list[int]) -> Submit:
    sampling = SamplingParams(max_tokens=OUTPUT_LEN, temperature=0, ignore_eos=True)
    return Submit(request=number, prompt_tokens=prompt, sampling=sampling)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tokens_are_those_of_transformers_whatever_happens_to_the_request(
    tmp_path: Path, variant: Variant, *, overlap: bool
) -> None:
    folder = tiny_model(tmp_path, variant)
    device = CpuDevice(
        DeviceConfig(
            folder=str(folder),
            dtype="float32",
            page_size=PAGE_SIZE,
            num_pages=POOL_PAGES,
            kv_memory=None,
            max_running=8,
            max_model_len=128,
            max_step_tokens=STEP_TOKENS,
            quantization="none",
            batch_invariant=False,
            num_threads=2,
        )
    )
    pool = device.load(lambda _: None)
    config = SchedulerConfig(max_running=8, step_tokens=STEP_TOKENS, overlap=overlap, check_invariants=True)
    scheduler = Scheduler(config, read_model_info(folder, "tiny", 128), 1, lambda: 1)
    scheduler.add_group(0, 0, pool.num_pages, pool.page_size)
    model = reference_model(folder)
    expected = [greedy(model, prompt) for prompt in prompts()]

    for again in range(2):  # the second time much is in the prefix cache
        requests = [submit(again * 100 + i, prompt) for i, prompt in enumerate(prompts())]
        found = run(scheduler, device, requests)
        assert list(found.outputs.values()) == expected
        ends = list(found.terminal.values())
        assert len(ends) == len(requests)
        assert all(isinstance(end, RequestFinished) and end.reason == "length" for end in ends)
    assert scheduler.groups[0].num_preemptions > 0
    assert scheduler.stats.cache_hits > 0
    device.close()
