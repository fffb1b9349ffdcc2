"""Every case of our kernels once, small, for tools that watch a process: `python -m tests.gpu.small_run [DEVICE]`.

Leaves out what the library computes: its kernels are not ours to watch.
"""

import sys

from cuda.check.cases.gpu import CASES, SMALL
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.backends.gpu import GpuBackend
from cuda.kernels.backend import Backend

LIBRARYS = {"library's GEMM", "captured graph"}


def run_cases(device: str) -> None:
    backend: Backend = GpuBackend(0) if device.startswith("cuda") else EmulatedBackend()
    for case in CASES:
        if case.name not in LIBRARYS:
            for dtype in case.dtypes:
                assert case.run(backend, dtype, SMALL) <= 1, case.name
    backend.close()


if __name__ == "__main__":
    run_cases(sys.argv[1] if len(sys.argv) > 1 else "cuda:0")
