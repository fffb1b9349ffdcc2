import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda.emulator import DeviceArray, RawModule, Settings
from cuda.emulator.build import Mode
from cuda.kernels.add_rms_norm import Element, block_threads, kernel_name
from cuda.kernels.reference import rms_norm

SOURCE = Path(__file__).parents[3] / "cuda" / "kernels" / "add_rms_norm.cu"
EPS = 1e-5
NAMES = tuple(kernel_name(element, add=add) for element in ("float", "bf16") for add in (False, True))
COMBINATIONS: list[tuple[Mode, int]] = [
    ("fast", 0),
    ("fast", 1),
    ("fast", 2),
    ("check", 0),
    ("check", 3),
    ("check", 4),
]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def to_device(values: NDArray[np.float32], element: Element) -> NDArray[Any]:
    """As the device holds it; bfloat16 as uint16 bits, rounded to nearest even."""
    if element == "float":
        return values
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_device(values: NDArray[Any], element: Element) -> NDArray[np.float32]:
    return values if element == "float" else (values.astype(np.uint32) << 16).view(np.float32)


@needs_compiler
@pytest.mark.parametrize(("mode", "seed"), COMBINATIONS)
@pytest.mark.parametrize("element", ["float", "bf16"])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(0, 64), (1, 8), (3, 72), (2, 576), (5, 2056), (1, 4096)])
def test_it_equals_its_definition(mode: Mode, seed: int, element: Element, num_rows: int, num_columns: int) -> None:
    random = np.random.default_rng(seed)
    x, before = (random.standard_normal((num_rows, num_columns)).astype(np.float32) for _ in range(2))
    weight = random.standard_normal(num_columns).astype(np.float32)
    device = [DeviceArray.from_numpy(to_device(values, element)) for values in (before, x, weight)]
    residual, x_device, weight_device = device
    out = DeviceArray.empty((num_rows, num_columns), residual.dtype)
    module = RawModule(path=SOURCE, name_expressions=NAMES, settings=Settings(mode=mode, seed=seed))
    sizes = np.int32(num_columns), np.float32(EPS)
    grid, block = (num_rows,), (block_threads(num_columns, element),)

    module.get_function(kernel_name(element, add=False))(grid, block, (out, residual, x_device, weight_device, *sizes))
    plain = from_device(out.numpy(), element)
    module.get_function(kernel_name(element, add=True))(grid, block, (out, residual, x_device, weight_device, *sizes))
    fused = from_device(out.numpy(), element)

    rounded = [from_device(to_device(values, element), element) for values in (before, x, weight)]
    total = from_device(to_device(rounded[0] + rounded[1], element), element)
    tolerance = 2e-6 if element == "float" else 2**-8
    assert np.array_equal(from_device(residual.numpy(), element), total)
    np.testing.assert_allclose(plain, rms_norm(rounded[1], rounded[2], EPS), rtol=tolerance, atol=1e-6)
    np.testing.assert_allclose(fused, rms_norm(total, rounded[2], EPS), rtol=tolerance, atol=1e-6)


@needs_compiler
def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    random = np.random.default_rng(7)
    x = to_device(random.standard_normal((9, 576)).astype(np.float32), "bf16")
    weight = DeviceArray.from_numpy(to_device(random.standard_normal(576).astype(np.float32), "bf16"))
    kernel = RawModule(path=SOURCE, name_expressions=NAMES).get_function("add_rms_norm<bf16, false>")

    def normed(rows: NDArray[np.uint16]) -> NDArray[np.uint16]:
        out = DeviceArray.empty(rows.shape, np.uint16)
        args = (out, out, DeviceArray.from_numpy(rows), weight, np.int32(576), np.float32(EPS))
        kernel((len(rows),), (block_threads(576, "bf16"),), args)
        return out.numpy()

    together = normed(x)
    assert all(np.array_equal(normed(x[row : row + 1])[0], together[row]) for row in range(9))


@pytest.mark.parametrize(("num_columns", "threads"), [(8, 32), (576, 96), (2048, 256), (4096, 256), (16384, 512)])
def test_a_block_has_enough_threads_for_a_row(num_columns: int, threads: int) -> None:
    assert block_threads(num_columns, "bf16") == threads
    assert threads * 4 * 8 >= num_columns


@pytest.mark.parametrize("num_columns", [0, 7, 12, 32776])
def test_rows_that_the_kernel_cannot_take_are_refused(num_columns: int) -> None:
    with pytest.raises(ValueError, match=f"num_columns is {num_columns}"):
        block_threads(num_columns, "bf16")
