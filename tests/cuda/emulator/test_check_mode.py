from contextlib import closing

import numpy as np
import pytest

from cuda.emulator import CudaStream, DeviceArray, KernelError, RawModule, Settings
from tests.cuda.emulator.launching import failure, floats, line_of, run
from tests.cuda.emulator.test_execution import REVERSE

CHECK = Settings(mode="check")


def test_a_race_names_both_lines_and_both_threads() -> None:
    body = """
    extern "C" __global__ void k(int* x) {
        if (threadIdx.x == 0) x[5] = 1;  // FIRST
        if (threadIdx.x == 40) x[5] = 2;  // SECOND
    }"""
    error = failure(body, [np.zeros(8, np.int32)], block=64, mode="check")
    assert error.kind == "race"
    assert error.where is not None
    assert error.other is not None
    assert {error.where.line, error.other.line} == {line_of(body, "FIRST"), line_of(body, "SECOND")}
    assert error.thread in {(0, 0, 0), (40, 0, 0)}
    assert "a device array + 20" in str(error)


def test_blocks_race_even_when_they_run_one_after_the_other(seed: int) -> None:
    body = 'extern "C" __global__ void k(int* x) { x[0] = blockIdx.x; }'
    assert failure(body, [np.zeros(1, np.int32)], grid=2, block=1, mode="check", seed=seed).kind == "race"


def test_launches_that_the_host_orders_do_not_race() -> None:
    body = 'extern "C" __global__ void k(int* x) { x[threadIdx.x ^ 1] += 1; }'
    kernel = RawModule(code=body, settings=CHECK).get_function("k")
    x = DeviceArray.from_numpy(np.zeros(32, np.int32))
    for _ in range(3):
        kernel((1,), (32,), (x,))
    assert (x.numpy() == 3).all()


def test_streams_race_unless_the_host_orders_them() -> None:
    body = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] += 1; }'
    kernel = RawModule(code=body, settings=CHECK).get_function("k")
    x = DeviceArray.from_numpy(np.zeros(32, np.int32))
    with closing(CudaStream()) as first, closing(CudaStream()) as second:
        kernel((1,), (32,), (x,), stream=first)
        first.record().wait()
        kernel((1,), (32,), (x,), stream=second)
        second.synchronize()
        kernel((1,), (32,), (x,), stream=first)
        first.record().reached.result()  # it has ended, but nobody was told
        kernel((1,), (32,), (x,), stream=second)
        with pytest.raises(KernelError, match="of another launch"):
            second.synchronize()
        first.synchronize()
        kernel((1,), (32,), (x,), stream=second)
        second.synchronize()


def test_reading_what_nobody_wrote_is_reported_until_somebody_did() -> None:
    body = """
    extern "C" __global__ void k(float* x, int is_write) {
        if (is_write) x[threadIdx.x] = 1.0f; else if (x[threadIdx.x] > 2.0f) x[0] = 0.0f;
    }"""
    kernel = RawModule(code=body, settings=CHECK).get_function("k")
    x = DeviceArray.empty(32, np.float32)
    with pytest.raises(KernelError, match="uninitialised"):
        kernel((1,), (32,), (x, np.int32(0)))
    kernel((1,), (32,), (x, np.int32(1)))
    kernel((1,), (32,), (x, np.int32(0)))


def test_what_an_unwatched_kernel_wrote_counts_as_written() -> None:
    body = 'extern "C" __global__ void k(float* x, int go) { if (go || x[threadIdx.x] == 0.0f) x[threadIdx.x] = 1.0f; }'
    x = DeviceArray.empty(32, np.float32)
    RawModule(code=body).get_function("k")((1,), (32,), (x, np.int32(1)))
    RawModule(code=body, settings=CHECK).get_function("k")((1,), (32,), (x, np.int32(0)))


def test_what_the_host_wrote_behind_its_back_counts_as_written() -> None:
    kernel = RawModule(
        code='extern "C" __global__ void k(float* x) { if (x[threadIdx.x] > 0.0f) x[0] = 0.0f; }', settings=CHECK
    ).get_function("k")
    x = DeviceArray.empty(32, np.float32)
    with pytest.raises(KernelError, match="uninitialised"):
        kernel((1,), (1,), (x,))
    x.mark_initialised()
    kernel((1,), (1,), (x,))


def test_neighbouring_halves_of_a_word_do_not_race(seed: int) -> None:
    body = 'extern "C" __global__ void k(unsigned short* x) { x[threadIdx.x] += 1; }'
    assert (run(body, [np.zeros(64, np.uint16)], block=64, seed=seed, mode="check")[0] == 1).all()


def test_sixteen_byte_accesses_are_watched(seed: int) -> None:
    body = """
    extern "C" __global__ void k(float4* x) {
        x[threadIdx.x] = x[threadIdx.x ^ 1];
    }"""
    assert failure(body, [floats(256)], block=64, seed=seed, mode="check").kind == "race"


def test_a_pool_of_more_than_two_to_the_31_bytes_is_addressed_and_its_overflow_caught() -> None:
    body = """
    extern "C" __global__ void k(unsigned char* pool, const int* page) {
        OFFSET offset = (OFFSET)page[0] * (1 << 30) + threadIdx.x;
        pool[offset] = 9;
    }"""
    pool = DeviceArray.empty(3 << 30, np.uint8)  # sparse: only touched pages take memory
    page = DeviceArray.from_numpy(np.array([2], np.int32))
    RawModule(code=body.replace("OFFSET", "long long"), settings=CHECK).get_function("k")((1,), (32,), (pool, page))
    with pytest.raises(KernelError, match="overflow in a signed product"):
        RawModule(code=body.replace("OFFSET", "int"), settings=CHECK).get_function("k")((1,), (32,), (pool, page))


def test_barriers_order_in_check_mode_as_in_fast(seed: int) -> None:
    x = floats(5 * 64)
    (got,) = run(REVERSE, [x], grid=5, block=64, seed=seed, shared_mem=256, mode="check")
    assert np.array_equal(got, (2 * x.reshape(5, 64)[:, ::-1] + 1).ravel())
