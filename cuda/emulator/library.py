"""The run-time's C functions, by ctypes. Loaded once a process, built if need be.

Owns the layout of the structures that cross the border; `runtime/launch.h` is the other side. Next: `module`.
"""

import ctypes
import functools
import shutil
import subprocess
from pathlib import Path

from cuda.emulator.build import KIND, build_runtime
from cuda.emulator.cache import kept_name
from cuda.emulator.errors import EmulatorError, KernelError, SourceLine


class LaunchRequest(ctypes.Structure):
    """`emulator::LaunchRequest`."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("kinds", ctypes.c_char_p),
        ("num_args", ctypes.c_uint64),
        ("shared_anchor", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("num_workers", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("cooperative", ctypes.c_uint32),
        ("checked", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("ticket", ctypes.c_uint32),
        ("watchdog_s", ctypes.c_double),
    )


class ErrorReport(ctypes.Structure):
    """`emulator::ErrorReport`."""

    _fields_ = (
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 8192),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("has_thread", ctypes.c_uint32),
        ("line", ctypes.c_int32),
        ("file", ctypes.c_char * 512),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("other_process", ctypes.c_uint64),
    )


@functools.cache
def load_runtime() -> ctypes.CDLL:
    """The library, global so that kernels find it.

    Raises:
        ToolchainError: It has to be built and there is no usable g++.
    """
    library = ctypes.CDLL(str(build_runtime()), mode=ctypes.RTLD_GLOBAL)
    library.emulator_allocate.argtypes = (ctypes.c_uint64, ctypes.c_int)
    library.emulator_allocate.restype = ctypes.c_void_p
    library.emulator_allocate_shared.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int)
    library.emulator_allocate_shared.restype = ctypes.c_void_p
    library.emulator_unlink_shared.argtypes = (ctypes.c_char_p,)
    library.emulator_free.argtypes = (ctypes.c_void_p,)
    library.emulator_note_use.argtypes = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int)
    library.emulator_may_host_touch.argtypes = (ctypes.c_uint64, ctypes.c_int)
    library.emulator_mark_initialised.argtypes = (ctypes.c_uint64,)
    library.emulator_launch.argtypes = (ctypes.POINTER(LaunchRequest), ctypes.POINTER(ErrorReport))
    locate = (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))
    library.emulator_locate.argtypes = locate
    for name, structure in (("request", LaunchRequest), ("report", ErrorReport)):
        size = getattr(library, f"emulator_{name}_bytes")
        size.restype = ctypes.c_uint64
        if size() != ctypes.sizeof(structure):
            raise EmulatorError(f"the {name} structure has {ctypes.sizeof(structure)} bytes here, {size()} there")
    return library


def kernel_error(kernel: str, report: ErrorReport) -> KernelError:
    """The exception that says what `report` says."""
    site = SourceLine(report.file.decode(), report.line) if report.line > 0 else None
    return KernelError(
        kernel,
        kind=report.kind.decode(),
        message=report.message.decode(errors="replace").rstrip(),
        block=(report.block[0], report.block[1], report.block[2]),
        thread=(report.thread[0], report.thread[1], report.thread[2]) if report.has_thread else None,
        where=_source_line(report.pc) or site,
        other=_source_line(report.other_pc, report.other_process),
    )


def _source_line(pc: int, process: int = 0) -> SourceLine | None:
    """Where in a kernel's source `pc` is; None outside of kernels, without binutils, or if the process has gone."""
    tool = shutil.which("addr2line")
    place = None if pc == 0 or tool is None else _place_elsewhere(pc, process) if process else _place_here(pc)
    if tool is None or place is None:
        return None
    library, offset = place
    name = kept_name(library, KIND)
    if name is None or name.startswith("runtime-"):
        return None
    command = [tool, "-e", str(library), hex(offset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - binutils
    file, _, line = done.stdout.strip().split(" ")[0].rpartition(":")
    if not line.isdigit():
        return None
    # A source given as text has no folder; the compiler put its own working folder before the name.
    return SourceLine(file if Path(file).exists() else Path(file).name, int(line))


def _place_here(pc: int) -> tuple[Path, int] | None:
    """The loaded file that `pc` is in, and the offset in it."""
    path, offset = ctypes.create_string_buffer(4096), ctypes.c_uint64()
    if not load_runtime().emulator_locate(pc, path, 4096, ctypes.byref(offset)):
        return None
    return Path(path.value.decode()), offset.value


def _place_elsewhere(pc: int, process: int) -> tuple[Path, int] | None:
    """The same of another process, by its map of addresses."""
    maps = Path(f"/proc/{process}/maps")
    bases: dict[str, int] = {}
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, *_, file = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        base = bases.setdefault(file, begin)  # a library's first part lies at its own address zero
        if begin <= pc < end:
            return Path(file), pc - base
    return None
