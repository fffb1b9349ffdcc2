"""Scheduler and gpu device together, its kernels in the emulator, on tiny models of every family.

The right tokens are transformers' greedy ones, request by request; plans are queued while the step before runs.
"""

from pathlib import Path

import pytest

from tests.cuda.devices.emulated import emulated_device
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import VARIANTS, Variant, tiny_model
from tests.end_to_end.families import Workload, check_tokens

WORKLOAD = Workload(lengths=(1, 30, 9), shared_length=12, output_len=6, step_tokens=24, pool_pages=19)


@needs_compiler
@pytest.mark.parametrize(("variant", "overlap"), [*((variant, True) for variant in VARIANTS), ("qwen3", False)])
def test_the_tokens_are_those_of_transformers_whatever_happens_to_the_request(
    tmp_path: Path, variant: Variant, *, overlap: bool
) -> None:
    folder = tiny_model(tmp_path, variant)
    device = emulated_device(WORKLOAD.device_config(folder))
    check_tokens(WORKLOAD, folder, device, overlap=overlap, num_rounds=1)
