from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cuda.gpu.backends.cubins import CompiledKernel, Parameter
from cuda.gpu.backends.launch import GpuLaunch, Size
from cuda.kernels.backend import Argument

POINTER, INT, FLOAT = Parameter("i", 8), Parameter("i", 4), Parameter("f", 4)
MAX_SHARED_BYTES = 227 << 10
Launched = tuple[Size, Size, list[np.generic], int]


class Driver:
    """Notes what reaches the driver."""

    def __init__(self, num_resident: int = 8) -> None:
        self.launches: list[Launched] = []
        self.allowed: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self._num_resident = num_resident

    def launch(self, grid: Size, block: Size, args: Sequence[np.generic], shared_bytes: int) -> None:
        self.launches.append((grid, block, list(args), shared_bytes))

    def allow_shared(self, num_bytes: int) -> None:
        self.allowed.append(num_bytes)

    def max_resident_blocks(self, num_threads: int, shared_bytes: int) -> int:
        self.asked.append((num_threads, shared_bytes))
        return self._num_resident


def launch_of(
    driver: Driver,
    *parameters: Parameter,
    max_threads: int | None = 256,
    shared_bytes: int = 0,
    cooperative: bool = False,
    device: str = "cpu",
) -> GpuLaunch:
    kernel = CompiledKernel("_Zk", parameters, max_threads, 32, shared_bytes, 0, 0)
    return GpuLaunch(
        "k<float>",
        kernel,
        driver,
        device=torch.device(device),
        max_shared_bytes=MAX_SHARED_BYTES,
        cooperative=cooperative,
    )


def test_tensors_null_and_scalars_reach_the_driver_at_their_exact_width() -> None:
    driver, tensor = Driver(), torch.zeros(4)
    launch = launch_of(driver, POINTER, POINTER, POINTER, INT, INT, FLOAT, Parameter("i", 1), Parameter("s", 16))
    several = np.void(bytes(16))
    args: list[Argument] = [tensor, None, np.uint64(1 << 63), np.int32(-1), np.uint32(2), np.float32(0.5), np.True_]
    launch((3,), (64, 2), [*args, several], shared_bytes=16)
    ((grid, block, packed, shared_bytes),) = driver.launches
    assert (grid, block, shared_bytes) == ((3, 1, 1), (64, 2, 1), 16)
    assert packed == [np.uint64(tensor.data_ptr()), np.uint64(0), *args[2:], several]
    assert [value.dtype.itemsize for value in packed] == [8, 8, 8, 4, 4, 4, 1, 16]


@pytest.mark.parametrize(
    ("parameter", "arg", "complaint"),
    [
        (INT, 1, "int, the parameter is integer32"),
        (FLOAT, 1.0, "float, the parameter is float32"),
        (INT, True, "bool, the parameter is integer32"),
        (INT, np.int64(1), "int64, the parameter is integer32"),
        (FLOAT, np.int32(1), "int32, the parameter is float32"),
        (FLOAT, np.float64(1), "float64, the parameter is float32"),
        (POINTER, np.float64(1), "float64, the parameter is integer64"),
        (INT, None, "NoneType, the parameter is integer32"),
        (INT, torch.zeros(1), "Tensor, the parameter is integer32"),
        (Parameter("f", 8), torch.zeros(1), "Tensor, the parameter is float64"),
        (Parameter("s", 8), None, "NoneType, the parameter is struct64"),
        (POINTER, np.zeros(1), "ndarray, the parameter is integer64"),
    ],
)
def test_an_argument_of_another_type_is_refused(parameter: Parameter, arg: object, complaint: str) -> None:
    driver = Driver()
    with pytest.raises(TypeError, match=rf"^k<float>: argument 1 is {complaint}$"):
        launch_of(driver, POINTER, parameter)((1,), (1,), [None, arg])  # type: ignore[list-item]  # the point
    assert driver.launches == []


def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(TypeError, match="argument 0 lies on cpu, the kernel runs on cuda:1"):
        launch_of(Driver(), POINTER, device="cuda:1")((1,), (1,), [torch.zeros(1)])


@pytest.mark.parametrize("args", [[], [None, None]])
def test_a_wrong_number_of_arguments_is_refused(args: list[None]) -> None:
    with pytest.raises(TypeError, match=rf"k<float> takes 1 arguments, {len(args)} were given"):
        launch_of(Driver(), POINTER)((1,), (1,), args)


@pytest.mark.parametrize("grid", [(0,), (4, 0), (4, 4, 0)])
def test_an_empty_grid_launches_nothing_but_is_checked(grid: tuple[int, ...]) -> None:
    driver = Driver()
    launch_of(driver, POINTER)(grid, (1,), [None])
    assert driver.launches == []
    with pytest.raises(TypeError):
        launch_of(driver, POINTER)(grid, (1,), [])


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (0,)),
        ((1,), (257,)),
        ((1,), (16, 17)),
        ((1,), (1, 1, 65)),
        ((-1,), (1,)),
        ((1 << 31,), (1,)),
        ((1, 1 << 16), (1,)),
        ((), (1,)),
        ((1,), (1, 1, 1, 1)),
    ],
)
def test_sizes_beyond_the_limits_are_refused(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    driver = Driver()
    with pytest.raises(ValueError, match=r"blocks|threads|dimensions"):
        launch_of(driver)(grid, block, [])
    assert driver.launches == []


def test_without_launch_bounds_a_block_may_have_1024_threads() -> None:
    driver = Driver()
    launch_of(driver, max_threads=None)((1,), (1024,), [])
    with pytest.raises(ValueError, match="1024 in all"):
        launch_of(driver, max_threads=None)((1,), (1025,), [])


def test_more_than_48_kib_of_shared_memory_static_and_dynamic_are_asked_for_once() -> None:
    driver = Driver()
    launch = launch_of(driver, shared_bytes=1024)
    launch((1,), (1,), [], shared_bytes=47 << 10)
    assert driver.allowed == []
    for num_bytes in (48 << 10, 96 << 10, 64 << 10):
        launch((1,), (1,), [], shared_bytes=num_bytes)
    assert driver.allowed == [48 << 10, 96 << 10]
    launch((1,), (1,), [], shared_bytes=MAX_SHARED_BYTES - 1024)
    for num_bytes in (MAX_SHARED_BYTES - 1023, -1):
        with pytest.raises(ValueError, match=f"{num_bytes} bytes of dynamic shared memory; the limit is 231424"):
            launch((1,), (1,), [], shared_bytes=num_bytes)


def test_a_cooperative_grid_must_fit_on_the_device() -> None:
    driver = Driver(num_resident=8)
    launch = launch_of(driver, cooperative=True)
    launch((4, 2), (64, 2), [], shared_bytes=512)
    assert driver.asked == [(128, 512)]
    with pytest.raises(ValueError, match=r"must all run at once; 8 of \(9, 1, 1\) can"):
        launch((9,), (32,), [])
    assert len(driver.launches) == 1


def test_other_grids_may_be_larger_than_the_device() -> None:
    driver = Driver(num_resident=1)
    launch_of(driver)((1000,), (32,), [])
    assert len(driver.launches) == 1
    assert driver.asked == []
