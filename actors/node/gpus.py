"""Which GPUs this process may use, as NVIDIA's driver says: no torch, no CuPy, and nothing stays loaded on them.

CUDA_VISIBLE_DEVICES counts, as it will in the workers. Read `actors.node.devices` for what is made of it.
"""

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DRIVER = "libcuda.so.1"
GENERATIONS = (8, 9, 10)
"""Compute capabilities, without the minor number, that kernels are compiled for: A100 to B200."""
NEEDED_MODULE = "cupy"
INSTALL_HINT = "install it with `pip install 'tokenstage[cuda]'`"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


@dataclass(frozen=True)
class Gpus:
    """What was found."""

    usable: tuple[int, ...]
    """Device numbers."""
    hindrance: str
    """Why there are no more, in words that say what to do; "" if all that there are can be used."""


def find_gpus(load: Callable[[str], Any] = ctypes.CDLL) -> Gpus:
    """Return the GPUs that workers can run on; `load` opens a library or raises OSError."""
    try:
        library = load(DRIVER)
    except OSError:
        return Gpus((), f"there is no NVIDIA driver here ({DRIVER} cannot be loaded); install one")
    error = library.cuInit(0)
    if error:
        return Gpus((), f"NVIDIA's driver finds no GPU (cuInit answers {error}); see what `nvidia-smi` says")
    number = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(number))
    capabilities = [_capability(library, index) for index in range(number.value)]
    usable = tuple(index for index, (major, _minor) in enumerate(capabilities) if major in GENERATIONS)
    if usable and importlib.util.find_spec(NEEDED_MODULE) is None:
        return Gpus((), f"GPUs need the Python package {NEEDED_MODULE}; {INSTALL_HINT}")
    if len(usable) < len(capabilities):
        return Gpus(usable, "kernels are made for compute capability 8.x, 9.x and 10.x (A100 to B200)")
    return Gpus(usable, "")


def _capability(library: Any, index: int) -> tuple[int, int]:  # noqa: ANN401 - C functions
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return major.value, minor.value
