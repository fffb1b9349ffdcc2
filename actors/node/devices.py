"""The devices that were asked for, as groups, and what is there of them: GPUs, their kernels' compilers, cores.

NVIDIA's driver is asked about GPUs: no torch, no CuPy, and nothing stays loaded on them. CUDA_VISIBLE_DEVICES counts,
as it will in the workers. Nothing is opened here: workers do. How large groups become when nobody said: `grouping`.
"""

import ctypes
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog
from msgspec import Struct

from actors.node.settings import ConfigError

KINDS = ("cuda", "cpu", "emu", "counting")
DRIVER = "libcuda.so.1"
GENERATIONS = (8, 9, 10)
"""Compute capabilities, without the minor number, that kernels are compiled for: A100 to B200."""
NEEDED_MODULE = "cupy"
INSTALL_HINT = "install it with `pip install 'tokenstage[cuda]'`"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPUS = Path("/sys/devices/system/cpu")
NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""Where NVIDIA's driver is loaded."""
log = structlog.get_logger()


class Group(Struct, frozen=True):
    """The devices that run one plan in lockstep."""

    role: Literal["mixed"]
    devices: tuple[str, ...]
    """In rank order."""

    @property
    def size(self) -> int:
        """How many ranks share out the model."""
        return len(self.devices)


def read_groups(devices: str | None, topology: str | None, tp: int | None) -> tuple[Group, ...]:
    """All groups, in order; without `tp` and `topology` each device is one, until a size is chosen for the model.

    Without `devices` they are all GPUs that can be used, else the CPU. Raises ConfigError for what is malformed,
    contradictory or not in this version.
    """
    if topology is None:
        if devices is not None:
            return grouped(_read_devices(devices, "--devices"), tp or 1)
        return grouped(tuple(f"cuda:{index}" for index in find_gpus().usable) or ("cpu:0",), tp or 1)
    groups = tuple(_read_group(entry.strip()) for entry in topology.split(";"))
    members = [device for group in groups for device in group.devices]
    _check_distinct(members, "--topology")
    if devices is not None and set(_read_devices(devices, "--devices")) != set(members):
        raise ConfigError(f"--devices: {devices} are not the devices of --topology ({','.join(members)}); leave it out")
    for group in groups:
        _check_kind(group, "--topology")
        if tp is not None and group.size != tp:
            named = ",".join(group.devices)
            raise ConfigError(f"--tp: {tp}, but --topology has a group of {group.size} ({named}); leave it out")
    return groups


def grouped(devices: tuple[str, ...], size: int) -> tuple[Group, ...]:
    """Groups of `size` devices that are named one after the other."""
    if len(devices) % size:
        named = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        mend = f"name {size} devices for each group, such as --devices {_example(devices[0], size)}"
        raise ConfigError(f"--tp: {size} does not divide the {named} ({','.join(devices)}); {mend}")
    groups = tuple(Group("mixed", devices[begin : begin + size]) for begin in range(0, len(devices), size))
    for group in groups:
        _check_kind(group, "--devices")
    return groups


def _example(device: str, size: int) -> str:
    """Short, whatever number somebody has typed."""
    kind = device.partition(":")[0]
    named = [f"{kind}:{number}" for number in range(min(size, 4))]
    return ",".join(named if size <= len(named) else [*named, "..."])


def _read_group(entry: str) -> Group:
    role, equals, devices = entry.partition("=")
    if not equals:
        raise ConfigError(f"--topology: {entry!r} is no group; write mixed=cpu:0;mixed=cpu:1 (in quotes)")
    if role in {"prefill", "decode"}:
        raise ConfigError(f"--topology: role {role!r} is not in this version yet; use mixed")
    if role != "mixed":
        raise ConfigError(f"--topology: {role!r} is no role; use mixed")
    return Group("mixed", _read_devices(devices, "--topology"))


def _check_kind(group: Group, setting: str) -> None:
    if len({device.partition(":")[0] for device in group.devices}) > 1:
        named = ",".join(group.devices)
        raise ConfigError(f"{setting}: {named} cannot share out one model; use devices of one kind in a group")


def _read_devices(listed: str, setting: str) -> tuple[str, ...]:
    devices = tuple(_read_device(name.strip(), setting) for name in listed.split(","))
    _check_distinct(list(devices), setting)
    return devices


def _read_device(name: str, setting: str) -> str:
    kind, colon, number = name.partition(":")
    if kind not in KINDS or (colon and not (number.isascii() and number.isdigit())):
        raise ConfigError(f"{setting}: {name!r} is no device; use cuda:N, cpu, cpu:N or emu:N")
    return f"{kind}:{int(number or 0)}"


def _check_distinct(devices: list[str], setting: str) -> None:
    for device in devices:
        if devices.count(device) > 1:
            raise ConfigError(f"{setting}: {device} is named twice; name each device once")


def check_devices(devices: Sequence[str]) -> None:
    """Raise ConfigError with what is missing and how to get it; log why a GPU that is there is left unused."""
    if all(device.startswith("cpu:") for device in devices) and NVIDIA_DEVICE.exists():
        log.info("the CPU serves although there is NVIDIA's driver", gpus=find_gpus().hindrance or "not asked for")
    for device in devices:
        if lack := lack_of(device):
            raise ConfigError(f"--devices: {lack}")


def lack_of(device: str) -> str:
    """Return what a device lacks and how to get it; "" if it can be used."""
    if device.startswith("cuda:"):
        return _lack_of_gpu(device)
    return _lack_of_emulator() if device.startswith("emu:") else ""


def _lack_of_gpu(device: str) -> str:
    from cuda.gpu.backends.nvrtc import MissingPart, find_compiler  # noqa: PLC0415 - only for a GPU

    found = find_gpus()
    usable = [f"cuda:{index}" for index in found.usable]
    if device not in usable:
        reason = found.hindrance or f"there are {', '.join(usable)}"
        return f"{device} cannot be used: {reason}"
    try:
        find_compiler()
    except MissingPart as error:
        return str(error)
    return ""


def _lack_of_emulator() -> str:
    from cuda.emulator.build import find_toolchain  # noqa: PLC0415 - likewise
    from cuda.emulator.errors import ToolchainError  # noqa: PLC0415 - NumPy comes with it

    try:
        find_toolchain()
    except ToolchainError as error:
        return str(error)
    return ""


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


def usable_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return at least 1: the affinity, and what a container's quota leaves of that."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores, _quota(quota_file) or cores))


def core_shares(num_shares: int, quota_file: Path = CGROUP_QUOTA, cpus: Path = CPUS) -> list[tuple[int, ...]]:
    """Return equal shares; hardware threads of one core, and cores of one socket, stay together as far as they can.

    Shares are empty where to keep to cores could only hurt: there are fewer than shares, or a container may use a part
    of them only, of which others choose theirs too.
    """
    affinity = os.sched_getaffinity(0) if sys.platform == "linux" else set()
    size = len(affinity) // num_shares
    if not size or usable_cores(quota_file) < len(affinity):
        return [()] * num_shares
    ordered = sorted(affinity, key=lambda cpu: _place(cpus, cpu))
    return [tuple(ordered[begin : begin + size]) for begin in range(0, num_shares * size, size)]


def _place(cpus: Path, cpu: int) -> tuple[int, int, int]:
    """Socket, core, hardware thread; each logical CPU is a core where the kernel does not say."""
    topology = cpus / f"cpu{cpu}" / "topology"
    try:
        socket, core = (int((topology / name).read_text("ascii")) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return 0, cpu, cpu
    return socket, core, cpu


def _quota(file: Path) -> int | None:
    """Cores by the kernel's `QUOTA PERIOD` in microseconds; None for `max` and where there is no such file."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else math.ceil(int(quota) / int(period))
