"""The backend on real hardware: what its tests elsewhere had to take from a fake driver."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.gpu.backends.gpu import GpuBackend

SOURCE = """
extern "C" __global__ void __launch_bounds__(256) add(float* x, float term, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += term;
}
extern "C" __global__ void __launch_bounds__(256) last_byte(unsigned char* out, int num_bytes) {
    extern __shared__ volatile unsigned char bytes[];
    bytes[num_bytes - 1] = 42;
    out[0] = bytes[num_bytes - 1];
}
// Every block waits for every other: it ends only if all run at once.
extern "C" __global__ void __launch_bounds__(32) meet(unsigned* arrived) {
    if (threadIdx.x != 0) return;
    atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) % gridDim.x != 0) __nanosleep(100);
}
// Leaves the stream busy for some time, so that what is queued behind it cannot have run yet.
extern "C" __global__ void __launch_bounds__(32) spend(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "small.cu").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def backend(sources: Path) -> Iterator[GpuBackend]:
    backend = GpuBackend(0, sources=sources)
    yield backend
    backend.close()


def test_a_kernel_works_on_torchs_tensors_in_the_streams_order(backend: GpuBackend) -> None:
    (add,) = backend.kernels("small.cu", ["add"])
    host, x = backend.pinned((1000,), torch.float32), backend.zeros((1000,), torch.float32)
    for _ in range(3):
        add((4,), (256,), (x, np.float32(2), np.int32(1000)))
    backend.copy(host, x)
    backend.record().wait()
    assert host.tolist() == [6.0] * 1000


def test_an_event_is_done_when_what_came_before_it_is(backend: GpuBackend) -> None:
    (spend,) = backend.kernels("small.cu", ["spend"])
    spend((1,), (1,), (np.int64(100_000_000),))  # some 50 ms
    event = backend.record()
    assert not event.is_done()
    event.wait()
    assert event.is_done()


def test_a_graph_repeats_kernels_products_and_copies(backend: GpuBackend) -> None:
    (add,) = backend.kernels("small.cu", ["add"])
    x, weight = backend.zeros((4, 8), torch.float32), backend.zeros((8, 8), torch.float32)
    out, host = backend.zeros((4, 8), torch.float32), backend.pinned((4, 8), torch.float32)
    weight.fill_(1)

    def step() -> None:
        add((1,), (256,), (x, np.float32(1), np.int32(32)))
        backend.matmul(out, x, weight, None)
        backend.copy(host, out)

    step()
    graph = backend.capture(step)
    backend.synchronize()
    assert set(host.flatten().tolist()) == {8.0}
    for _ in range(2):
        graph.launch()
    backend.synchronize()
    assert set(host.flatten().tolist()) == {24.0}


def test_a_cooperative_grid_and_a_kernels_first_launch_can_be_recorded(backend: GpuBackend) -> None:
    (meet,), (add,) = backend.kernels("small.cu", ["meet"], cooperative=True), backend.kernels("small.cu", ["add"])
    arrived, x = backend.zeros((1,), torch.int32), backend.zeros((8,), torch.float32)
    num_blocks = backend.num_multiprocessors

    def step() -> None:
        meet((num_blocks,), (32,), (arrived,))
        add((1,), (256,), (x, np.float32(1), np.int32(8)))

    graph = backend.capture(step)
    assert arrived.item() == 0
    for _ in range(3):
        graph.launch()
    backend.synchronize()
    assert arrived.item() == 3 * num_blocks
    assert x.tolist() == [3.0] * 8


def test_all_shared_memory_that_a_block_may_have_can_be_asked_for(backend: GpuBackend) -> None:
    (last_byte,) = backend.kernels("small.cu", ["last_byte"])
    out = backend.zeros((1,), torch.uint8)
    last_byte((1,), (1,), (out, np.int32(backend.max_shared_bytes)), shared_bytes=backend.max_shared_bytes)
    backend.synchronize()
    assert out.item() == 42


def test_a_cooperative_grid_of_one_block_a_multiprocessor_meets_and_a_larger_than_fits_is_refused(
    backend: GpuBackend,
) -> None:
    (meet,) = backend.kernels("small.cu", ["meet"], cooperative=True)
    arrived = backend.zeros((1,), torch.int32)
    meet((backend.num_multiprocessors,), (32,), (arrived,))
    backend.synchronize()
    assert arrived.item() == backend.num_multiprocessors
    with pytest.raises(ValueError, match="must all run at once"):
        meet((backend.num_multiprocessors * 64 + 1,), (32,), (arrived,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 65])
def test_a_product_is_that_of_float64(
    backend: GpuBackend, dtype: torch.dtype, out_dtype: torch.dtype, num_rows: int, *, has_bias: bool
) -> None:
    if out_dtype.itemsize < dtype.itemsize:
        pytest.skip("out is never narrower than x")
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((num_rows, 256), (72, 256), (72,))
    )
    out = backend.empty((num_rows, 72), out_dtype)
    backend.matmul(out, x.cuda(), weight.cuda(), bias.cuda() if has_bias else None)
    backend.synchronize()
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    relative = 2**-8 if out_dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.cpu().double(), expected, rtol=relative, atol=16 * relative)


def test_memory_that_is_freed_can_be_had_again(backend: GpuBackend) -> None:
    before = backend.free_bytes()
    block = backend.empty((64 << 20,), torch.uint8)
    assert backend.free_bytes() <= before - (64 << 20)
    del block
    assert backend.free_bytes() > before - (64 << 20)
