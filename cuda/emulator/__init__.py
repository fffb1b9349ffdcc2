"""The CUDA execution model on the CPU: runs unchanged `.cu` files under seeded schedules and reports their errors.

`module` is CuPy's interface to it, `build` compiles, `runtime/` schedules threads and `include/` is what kernels see.
It says nothing of speed, registers, or real weak memory: the check on a GPU does.
"""

from cuda.emulator.array import DeviceArray, unlink_shared
from cuda.emulator.errors import EmulatorError, KernelError, SourceError, ToolchainError
from cuda.emulator.module import Kernel, RawModule, Settings
from cuda.emulator.stream import CudaStream, Event, Graph

__all__ = [
    "CudaStream",
    "DeviceArray",
    "EmulatorError",
    "Event",
    "Graph",
    "Kernel",
    "KernelError",
    "RawModule",
    "Settings",
    "SourceError",
    "ToolchainError",
    "unlink_shared",
]
