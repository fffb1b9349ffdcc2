"""Everything that is checked on one device, finding by finding; runs in a process of its own (`watched`).

A case that fails is a finding, and the next one follows; what takes the process down ends the device's check.
"""

import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from cuda.check.cases.case import FLOAT, HALF
from cuda.check.cases.gpu import CASES, SMALL, name_of
from cuda.check.findings import Begun, Finding
from cuda.check.speed import ceiling_of, copy_bandwidth, gemm_flops, host_copy_bandwidth, host_gemm_flops
from cuda.kernels.backend import Backend
from cuda.models.kv import available_memory

Report = Callable[[Finding | Begun], None]
COPIED_BYTES = 1 << 30
GEMM_SIZE = {FLOAT: 4096, HALF: 8192}
CPU_COPIED_BYTES, CPU_GEMM_SIZE = 256 << 20, 1024


def check_device(report: Report, device: str) -> None:
    """Describe `device`, run every kernel's case there, measure it where a measurement means something."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        _check_gpu(report, int(number))
    elif kind == "emu":
        _check_emulator(report)
    else:
        _check_cpu(report)


def check_kernels(report: Report, backend: Backend) -> None:
    """Each kernel and dtype against its definition."""
    for case in CASES:
        for dtype in case.dtypes:
            subject = f"{case.name} {name_of(dtype)}"
            _check_case(report, subject, partial(case.run, backend, dtype, SMALL))


def _check_case(report: Report, subject: str, run: Callable[[], float]) -> None:
    report(Begun(subject))
    try:
        share = run()
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is what is looked for
        report(Finding(subject, "FAILED", f"{type(error).__name__}: {error}".splitlines()[0]))
        return
    measured = "equal" if share == 0 else f"error {share:.2g} of the tolerance"
    report(Finding(subject, "ok" if share <= 1 else "FAILED", measured))


def _check_gpu(report: Report, index: int) -> None:
    from cuda.gpu.backends.gpu import GpuBackend  # noqa: PLC0415 - of use on machines with a GPU only

    report(Begun("start"))
    backend = GpuBackend(index)
    properties = torch.cuda.get_device_properties(index)
    memory = f"{properties.total_memory / 2**30:.0f} GiB, {backend.free_bytes() / 2**30:.0f} free"
    capability = f"compute capability {properties.major}.{properties.minor}"
    report(Finding(properties.name, "note", f"{memory}, {capability}, {properties.multi_processor_count} SMs"))
    report(Finding("software", "note", ", ".join(f"{name} {number}" for name, number in gpu_software().items())))
    check_kernels(report, backend)
    ceiling = ceiling_of(properties.name)
    report(Begun("copy bandwidth"))
    bandwidth = copy_bandwidth(backend, min(COPIED_BYTES, backend.free_bytes() // 4))
    report(_rate("copy bandwidth", bandwidth, "GB/s", ceiling.bandwidth if ceiling else None))
    for dtype, size in GEMM_SIZE.items():
        subject = f"library's GEMM speed {name_of(dtype)}"
        report(Begun(subject))
        flops = gemm_flops(backend, dtype, size)
        report(_rate(subject, flops, "GFLOP/s", ceiling.flops if ceiling and dtype == HALF else None))


def gpu_software() -> dict[str, str]:
    """Versions of the driver and of the packages that matter."""
    from cuda.gpu.backends.nvrtc import find_compiler  # noqa: PLC0415 - loads a large library

    loaded = Path("/proc/driver/nvidia/version")
    driver = loaded.read_text(encoding="utf-8").splitlines()[0].split("  ")[1:2] if loaded.exists() else []
    return {
        "driver": " ".join(driver) or "unknown",
        "CUDA": str(torch.version.cuda),
        "torch": str(torch.__version__),
        "CuPy": _version("cupy-cuda13x"),
        "NVRTC": find_compiler().version,
    }


def _check_emulator(report: Report) -> None:
    from cuda.emulator import Settings  # noqa: PLC0415 - likewise
    from cuda.emulator.build import find_toolchain  # noqa: PLC0415 - likewise
    from cuda.gpu.backends.emulated import EmulatedBackend  # noqa: PLC0415 - of use for emulated devices only

    report(Begun("start"))
    report(Finding("emulator in check mode", "note", f"compiled by {find_toolchain().command}"))
    check_kernels(report, EmulatedBackend(Settings(mode="check")))


def _check_cpu(report: Report) -> None:
    from cuda.check.cases.cpu import CASES as CPU_CASES  # noqa: PLC0415 - loads the CPU's compiler
    from cuda.cpu.kernels.program import compile_kernels  # noqa: PLC0415 - likewise

    cores = f"{torch.get_num_threads()} threads, {available_memory() / 2**30:.0f} GiB free"
    report(Finding(_processor(), "note", f"{cores}, torch {torch.__version__}, numba {_version('numba')}"))
    report(Begun("compilation of the kernels"))
    compile_kernels()
    for subject, run in CPU_CASES:
        _check_case(report, subject, run)
    report(Begun("speed"))
    report(_rate("copy bandwidth", host_copy_bandwidth(CPU_COPIED_BYTES), "GB/s", None))
    report(_rate("torch's GEMM speed float32", host_gemm_flops(CPU_GEMM_SIZE), "GFLOP/s", None))


def _rate(subject: str, value: float, unit: str, ceiling: float | None) -> Finding:
    limit = f"{value / ceiling:.0%} of the advertised {ceiling / 1e9:,.0f}" if ceiling else ""
    return Finding(subject, "note", f"{value / 1e9:,.1f} {unit}", limit)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
