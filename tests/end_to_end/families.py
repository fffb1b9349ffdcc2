"""A workload that makes everything happen to requests, and what transformers says to their prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.scheduler import Scheduler
from cuda.devices.device import Device, DeviceConfig
from cuda.models.folder import read_model_info
from protocol.messages import RequestFinished, Submit
from protocol.sampling import SamplingParams
from tests.cuda.models.tiny import VOCAB_SIZE, reference_model
from tests.end_to_end.one_thread import run

MAX_RUNNING = 8
PAGE_SIZE = 4


@dataclass(frozen=True)
class Workload:
    """Prompts of `lengths`, and three more that begin with the same `shared_length` tokens.

    Steps are shorter than some prompts, and `pool_pages` are so few that the batch outgrows them while it decodes.
    """

    lengths: Sequence[int]
    shared_length: int
    output_len: int
    step_tokens: int
    pool_pages: int

    def device_config(self, folder: Path) -> DeviceConfig:
        return DeviceConfig(
            folder=str(folder),
            dtype="float32",
            page_size=PAGE_SIZE,
            num_pages=self.pool_pages,
            kv_memory=None,
            max_running=MAX_RUNNING,
            max_model_len=128,
            max_step_tokens=self.step_tokens,
            quantization="none",
            batch_invariant=False,
            num_threads=2,
            peer_timeout_s=10.0,
        )

    def prompts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(5)
        shared, *others = [
            torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
            for length in (self.shared_length, *self.lengths)
        ]
        return [*others, [*shared, 7, 8, 9], [*shared, 10], shared]

    def expected(self, folder: Path) -> list[list[int]]:
        """Greedy tokens of transformers, request by request."""
        model = reference_model(folder)
        return [_greedy(model, prompt, self.output_len) for prompt in self.prompts()]


def check_tokens(workload: Workload, folder: Path, device: Device, *, overlap: bool, num_rounds: int) -> None:
    """Serve the workload again and again on a new device: the later times much is in the prefix cache."""
    pool = device.load(lambda _: None)
    config = SchedulerConfig(
        max_running=MAX_RUNNING, step_tokens=workload.step_tokens, overlap=overlap, check_invariants=True
    )
    scheduler = Scheduler(config, read_model_info(folder, "tiny", 128), 1, lambda: 1)
    scheduler.add_group(0, 0, pool.num_pages, pool.page_size)
    expected = workload.expected(folder)
    for again in range(num_rounds):
        requests = [_submit(100 * again + i, prompt, workload) for i, prompt in enumerate(workload.prompts())]
        found = run(scheduler, device, requests)
        assert list(found.outputs.values()) == expected
        ends = list(found.terminal.values())
        assert len(ends) == len(requests)
        assert all(isinstance(end, RequestFinished) and end.reason == "length" for end in ends)
    assert scheduler.groups[0].num_preemptions > 0
    assert scheduler.stats.cache_hits > 0
    device.close()


def _submit(number: int, prompt: list[int], workload: Workload) -> Submit:
    sampling = SamplingParams(max_tokens=workload.output_len, temperature=0, ignore_eos=True)
    return Submit(request=number, prompt_tokens=prompt, sampling=sampling)


def _greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt])
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    output: list[int] = tokens[0, len(prompt) :].tolist()
    return output
