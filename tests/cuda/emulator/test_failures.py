import threading
import time
from contextlib import closing

import numpy as np
import pytest

from cuda.emulator import CudaStream, DeviceArray, KernelError, RawModule, Settings
from tests.cuda.emulator.launching import failure, floats, line_of, run
from tests.cuda.emulator.subjects import PTX


def test_an_access_behind_an_array_names_block_thread_and_line() -> None:
    body = """
    extern "C" __global__ void k(float* x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        x[i] = 1.0f;  // HERE
    }"""
    error = failure(body, [floats(64)], grid=3, block=32)
    assert error.kind == "memory-fault"
    assert error.block == (2, 0, 0)
    assert error.thread is not None
    assert error.where is not None
    assert (error.where.file, error.where.line) == ("kernel.cu", line_of(body, "HERE"))


def test_a_write_just_behind_an_odd_array_is_found() -> None:
    error = failure('extern "C" __global__ void k(float* x) { x[5] = 1.0f; }', [floats(5)], block=1)
    assert error.kind == "out-of-bounds"


def test_a_write_behind_an_array_known_by_its_address_alone_is_found() -> None:
    kernel = RawModule(code='extern "C" __global__ void k(float* x) { x[4] = 1.0f; }').get_function("k")
    x = DeviceArray.from_numpy(floats(5))
    with closing(CudaStream()) as stream:
        kernel((1,), (1,), (np.uint64(x.pointer + 4),), stream=stream)
        with pytest.raises(KernelError, match="behind the end of the array that argument 0 points into") as caught:
            stream.synchronize()
    assert caught.value.kind == "out-of-bounds"


def test_an_access_behind_dynamic_shared_memory_faults() -> None:
    body = """
    extern "C" __global__ void k(float* x) {
        extern __shared__ float s[];
        s[16 + threadIdx.x] = x[0];
        x[0] = s[1];
    }"""
    assert failure(body, [floats(1)], shared_mem=64).kind == "memory-fault"


def test_division_by_zero_is_an_error_and_the_emulator_lives_on() -> None:
    body = 'extern "C" __global__ void k(int* x) { x[0] = 7 / x[1]; }'
    assert failure(body, [np.zeros(2, np.int32)], block=1).kind == "arithmetic"
    assert run(body, [np.ones(2, np.int32)], block=1)[0][0] == 7


def test_a_deadline_ends_a_spin_with_a_trap(seed: int) -> None:
    body = (
        PTX
        + """
    extern "C" __global__ void k(unsigned* flag, unsigned* error) {
        unsigned long long deadline = ptx::global_timer_ns() + 2000000ull;
        while (ptx::load_acquire_system(flag) == 0u)
            if (ptx::global_timer_ns() > deadline) {
                atomicExch_system(error, 7u);
                __threadfence_system();
                ptx::trap();  // HERE
            }
    }"""
    )
    flag, error = (DeviceArray.from_numpy(np.zeros(1, np.uint32)) for _ in range(2))
    with pytest.raises(KernelError) as caught:
        RawModule(code=body, settings=Settings(seed=seed)).get_function("k")((1,), (1,), (flag, error))
    assert (caught.value.kind, str(caught.value.where)) == ("trap", f"kernel.cu:{line_of(body, 'HERE')}")
    assert error.numpy() == 7


@pytest.mark.parametrize(
    "declared",
    [
        'extern "C" __global__ void __launch_bounds__(64, 2) k',
        "template <int n> __global__ void __launch_bounds__(n * (2 - 1)) k",
    ],
)
def test_more_threads_than_a_kernels_bound_are_refused(declared: str) -> None:
    body = f"{declared}(int* x) {{ x[threadIdx.x] = 1; }}"
    name = "k<64>" if "template" in declared else "k"
    kernel = RawModule(code=body, name_expressions=(name,) * ("template" in declared)).get_function(name)
    x = DeviceArray.from_numpy(np.zeros(65, np.int32))
    kernel((1,), (64,), (x,))
    with pytest.raises(KernelError, match="launch-bounds"):
        kernel((1,), (65,), (x,))


def test_a_cooperative_launch_must_fit_the_device() -> None:
    code = 'extern "C" __global__ void k(int* x) { x[blockIdx.x] = 1; }'
    settings = Settings(max_cooperative_blocks=6)
    kernel = RawModule(code=code, enable_cooperative_groups=True, settings=settings).get_function("k")
    x = DeviceArray.from_numpy(np.zeros(7, np.int32))
    kernel((2, 3), (1,), (x,))
    with pytest.raises(ValueError, match="a cooperative launch of 7 blocks; at most 6 run at once"):
        kernel((7,), (1,), (x,))


def test_the_watchdog_waits_while_another_stream_gets_on() -> None:
    spin = RawModule(
        code='extern "C" __global__ void k(int* x) { while (atomicAdd(x, 0) == 0) {} }',
        settings=Settings(watchdog_s=0.1),
    )
    work = RawModule(code='extern "C" __global__ void k(int* x, int by) { atomicAdd(x, by); }')
    x = DeviceArray.from_numpy(np.zeros(1, np.int32))
    with closing(CudaStream()) as first, closing(CudaStream()) as second:
        spin.get_function("k")((1,), (32,), (x,), stream=first)
        started = time.monotonic()
        while time.monotonic() < started + 0.3:
            work.get_function("k")((1,), (1,), (x, np.int32(0)), stream=second)
            second.synchronize()
        work.get_function("k")((1,), (1,), (x, np.int32(1)), stream=second)
        first.synchronize()


def test_a_barrier_that_some_threads_skip_says_who_waits_where(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* x) {
        if (threadIdx.x < 16) __syncthreads();  // HERE
        else __syncwarp();  // THERE
    }"""
    error = failure(body, [np.zeros(1, np.int32)], seed=seed)
    assert error.kind == "deadlock"
    assert f"threads 0-15: __syncthreads at kernel.cu:{line_of(body, 'HERE')}" in str(error)
    assert f"threads 16-31: __syncwarp mask 0xffffffff at kernel.cu:{line_of(body, 'THERE')}" in str(error)


def test_two_barriers_that_meet_are_reported(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* x) {
        if (threadIdx.x < 16)
            __syncthreads();
        else
            __syncthreads();
    }"""
    assert failure(body, [np.zeros(1, np.int32)], seed=seed).kind == "divergent-barrier"


WARP_MISUSES = {
    "the caller is not in its mask": ("__shfl_sync(0xffffu, i, 0)", "warp-misuse"),
    "the lane read is not in the mask": ("(i < 16 ? __shfl_sync(0xffffu, i, 20) : 0)", "warp-misuse"),
    "the lane read has exited": ("(i == 3 ? ([]() {}(), 0) : __shfl_sync(~8u, i, 3))", "warp-misuse"),
    "one mask at two lines": ("(i < 16\n ? __shfl_sync(~0u, i, 0)\n : __shfl_sync(~0u, i, 0))", "divergent-warp"),
    "two operations with one mask": ("(i < 16 ? __ballot_sync(~0u, 1) : __any_sync(~0u, 1))", "divergent-warp"),
}


@pytest.mark.parametrize("name", WARP_MISUSES)
def test_misused_warp_operations_are_reported(name: str, seed: int) -> None:
    expression, kind = WARP_MISUSES[name]
    body = f'extern "C" __global__ void k(int* x) {{ int i = threadIdx.x; x[i] = {expression}; }}'
    assert failure(body, [np.zeros(32, np.int32)], seed=seed).kind == kind


def test_reading_an_absent_lane_is_reported(seed: int) -> None:
    body = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = __shfl_xor_sync(~0u, (int)threadIdx.x, 16); }'
    error = failure(body, [np.zeros(24, np.int32)], block=24, seed=seed)
    assert error.kind == "warp-misuse"
    assert "absent" in str(error)


def test_the_watchdog_says_where_everybody_spins(seed: int) -> None:
    body = 'extern "C" __global__ void k(int* x) {\n while (atomicAdd(x, 0) == 0) {}\n}'
    error = failure(body, [np.zeros(1, np.int32)], seed=seed, watchdog_s=0.05)
    assert error.kind == "watchdog"
    assert "threads 0-31: atomicAdd at kernel.cu:2" in str(error)


def test_blocks_that_wait_for_each_other_need_a_cooperative_launch(seed: int) -> None:
    body = """
    extern "C" __global__ void k(unsigned* arrived) {
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < gridDim.x) __nanosleep(20);
    }"""
    assert failure(body, [np.zeros(1, np.uint32)], grid=3, block=1, seed=seed, watchdog_s=0.05).kind == "watchdog"


def test_a_failure_on_one_device_ends_the_spinning_of_another() -> None:
    spin = RawModule(code='extern "C" __global__ void k(int* x) { while (atomicAdd(x, 0) == 0) {} }')
    fault = RawModule(code='extern "C" __global__ void k(int* x) { atomicExch(x + 1, 1); x[4] = 1; }')
    x = DeviceArray.from_numpy(np.zeros(4, np.int32))
    errors: list[str] = []
    started = threading.Event()

    def spinner() -> None:
        started.set()
        try:
            spin.get_function("k")((1,), (32,), (x,))
        except KernelError as error:
            errors.append(error.kind)

    thread = threading.Thread(target=spinner)
    thread.start()
    started.wait()
    while thread.is_alive():  # the spinner may not have launched yet at the first failure
        with pytest.raises(KernelError, match="memory-fault"):
            fault.get_function("k")((1,), (1,), (x,))
        thread.join(0.01)
    assert errors == ["aborted"]


def test_kernels_that_spin_on_each_other_run_on_two_devices(seed: int) -> None:
    body = """
    extern "C" __global__ void k(int* mine, int* theirs) {
        for (int round = 1; round <= 5; ++round) {
            if (threadIdx.x == 0) {
                atomicExch_system(mine, round);
                while (atomicAdd_system(theirs, 0) < round) __nanosleep(20);
            }
            __syncthreads();
        }
    }"""
    kernel = RawModule(code=body, settings=Settings(seed=seed)).get_function("k")
    a, b = (DeviceArray.from_numpy(np.zeros(1, np.int32)) for _ in range(2))
    other = threading.Thread(target=kernel, args=((1,), (32,), (b, a)))
    other.start()
    kernel((1,), (32,), (a, b))
    other.join()
    assert a.numpy() == b.numpy() == 5


def test_a_runaway_stack_is_reported() -> None:
    body = """
    __device__ int deep(int n) {
        volatile int big[4096];
        big[n & 4095] = n;
        return n == 0 ? big[0] : deep(n - 1) + big[n & 4095];
    }
    extern "C" __global__ void k(int* x) { x[0] = deep(x[0]); }"""
    kinds = {failure(body, [np.full(1, depth, np.int32)], block=1).kind for depth in (9, 100)}
    assert kinds <= {"stack-overflow", "memory-fault"}
