"""Scheduler and CPU device together on tiny models of every family: chunks, full batches, prefix hits, preemption.

The right tokens are transformers' greedy ones, request by request.
"""

from pathlib import Path

import pytest

from cuda.cpu.device import CpuDevice
from tests.cuda.models.tiny import VARIANTS, Variant, tiny_model
from tests.end_to_end.families import Workload, check_tokens

WORKLOAD = Workload(lengths=(1, 3, 20, 24, 25, 60), shared_length=48, output_len=30, step_tokens=32, pool_pages=36)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tokens_are_those_of_transformers_whatever_happens_to_the_request(
    tmp_path: Path, variant: Variant, *, overlap: bool
) -> None:
    folder = tiny_model(tmp_path, variant)
    device = CpuDevice(WORKLOAD.device_config(folder))
    check_tokens(WORKLOAD, folder, device, overlap=overlap, num_rounds=2)
