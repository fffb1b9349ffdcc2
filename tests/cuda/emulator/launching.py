"""Short ways to compile and run a one-kernel source in tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda.emulator import DeviceArray, KernelError, RawModule, Settings
from cuda.emulator.build import Mode


def run(  # one argument for each thing a launch has
    body: str,
    arrays: list[NDArray[Any]],
    *,
    scalars: tuple[np.generic, ...] = (),
    grid: int = 1,
    block: int = 32,
    seed: int = 0,
    mode: Mode = "fast",
    shared_mem: int = 0,
    cooperative: bool = False,
    watchdog_s: float = 10.0,
) -> list[NDArray[Any]]:
    """Runs kernel `k` of `body` on copies of the arrays, and returns what they hold afterwards."""
    settings = Settings(mode=mode, seed=seed, watchdog_s=watchdog_s)
    module = RawModule(code=body, settings=settings, enable_cooperative_groups=cooperative)
    device = [DeviceArray.from_numpy(array) for array in arrays]
    module.get_function("k")((grid,), (block,), [*device, *scalars], shared_mem=shared_mem)
    return [array.numpy() for array in device]


def failure(body: str, arrays: list[NDArray[Any]], **how: Any) -> KernelError:
    """The error that running it raises."""
    try:
        run(body, arrays, **how)
    except KernelError as error:
        return error
    raise AssertionError("the kernel ran without an error")


def line_of(body: str, text: str) -> int:
    """The line on which `text` stands."""
    return next(number for number, line in enumerate(body.splitlines(), 1) if text in line)


def floats(count: int) -> NDArray[np.float32]:
    return np.arange(count, dtype=np.float32)
