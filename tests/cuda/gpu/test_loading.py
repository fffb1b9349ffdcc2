"""A device's memory: the pool takes what is left, and what does not fit is said in one line that names the mend."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.device import GpuDevice
from cuda.gpu.loading import WORKSPACE_BYTES, pool_pages
from cuda.models.kv import GPU_MEMORY_SHARE, KvLayout
from protocol.errors import PartFailed
from tests.cuda.devices.driver import config_for
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import tiny_model

LAYOUT = KvLayout(num_layers=2, num_kv_heads=1, head_dim=64, page_size=16, item_bytes=4)
CONFIG = config_for(Path("/nowhere"), num_pages=None)


class ScarceBackend(EmulatedBackend):
    """Has so many bytes."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.left = num_bytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self.left -= torch.Size(shape).numel() * dtype.itemsize
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...\nand a long story")
        return super().empty(shape, dtype)

    zeros = empty

    def free_bytes(self) -> int:
        return self.left


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@needs_compiler
@pytest.mark.parametrize(
    ("num_bytes", "fields", "message"),
    [
        (1_000_000, {}, r"not enough device memory for the buffers of a step; lower --max-running or --step-tokens"),
        (300_000, {}, r"not enough device memory for the weights; lower --dtype$"),
        (
            8_000_000,
            {"num_pages": 4096},
            r"not enough device memory for the KV pool; lower --kv-memory or --num-pages$",
        ),
        (8_000_000, {"num_pages": None}, r"no device memory for the KV pool: .*; lower --max-running, --step-tokens"),
    ],
)
def test_a_lack_of_memory_names_what_to_lower(
    folder: Path, num_bytes: int, fields: dict[str, int], message: str
) -> None:
    device = GpuDevice(config_for(folder, max_model_len=128, **fields), ScarceBackend(num_bytes))
    with pytest.raises(PartFailed, match=message) as caught:
        device.load(lambda _done: None)
    assert "\n" not in str(caught.value)
    device.close()


@needs_compiler
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("a long\nstory"), RuntimeError("cudaErrorMemoryAllocation: out of memory")]
)
def test_a_lack_of_memory_for_what_is_recorded_names_what_to_lower(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def capture(_backend: EmulatedBackend, _run: object) -> None:
        raise error

    monkeypatch.setattr(EmulatedBackend, "capture", capture)
    device = GpuDevice(config_for(folder, max_model_len=128), EmulatedBackend())
    with pytest.raises(PartFailed, match=r"for recorded steps .*; lower --kv-memory or --num-pages or --max-running$"):
        device.load(lambda _done: None)
    device.close()


@needs_compiler
def test_the_emulator_has_no_more_memory_than_the_host() -> None:
    backend = EmulatedBackend()
    for allocate in (backend.empty, backend.zeros):
        with pytest.raises(torch.OutOfMemoryError, match="more than the host has free"):
            allocate((1 << 50,), torch.uint8)
    backend.close()


def test_the_pool_takes_nine_tenths_of_what_is_free_but_a_workspace_or_what_can_be_used() -> None:
    page_bytes = LAYOUT.page_bytes
    assert pool_pages(CONFIG, LAYOUT, WORKSPACE_BYTES + 100 * page_bytes) == 100 * GPU_MEMORY_SHARE == 90
    useful = CONFIG.max_running * CONFIG.max_model_len // CONFIG.page_size
    assert pool_pages(CONFIG, LAYOUT, 1 << 40) == useful


def test_a_pool_can_be_given_in_pages_or_bytes() -> None:
    assert pool_pages(config_for(Path("/nowhere"), num_pages=7), LAYOUT, 0) == 7
    by_bytes = config_for(Path("/nowhere"), num_pages=None, kv_memory=3 * LAYOUT.page_bytes + 1)
    assert pool_pages(by_bytes, LAYOUT, 0) == 3
    nothing = config_for(Path("/nowhere"), num_pages=None, kv_memory=100)
    with pytest.raises(PartFailed, match="was given 100; raise --kv-memory"):
        pool_pages(nothing, LAYOUT, 0)
