"""Kernels as CuPy offers them: `RawModule(...).get_function(name)(grid, block, args, shared_mem=, stream=)`.

Owns the loaded library of one `.cu`. Checks arguments to the byte before they reach the kernel. Next: `build`.
"""

import ctypes
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuda.emulator.array import DeviceArray
from cuda.emulator.build import Mode, build_module
from cuda.emulator.library import ErrorReport, LaunchRequest, kernel_error, load_runtime
from cuda.emulator.stream import CudaStream, Use

MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 << 10
KIND_NAMES = {"p": "pointer", "i": "int", "u": "uint", "f": "float", "b": "bool", "s": "struct"}


@dataclass(frozen=True)
class Settings:
    """How kernels are run.

    Attributes:
        mode: `fast` finds wrong numbers, faults and deadlocks; `check` also races, bounds and uninitialised reads.
        seed: Chooses block order, thread schedule and when asynchronous copies land.
        num_workers: OS threads that blocks are spread over; cooperative launches use one a block.
        max_cooperative_blocks: How many blocks of a cooperative launch fit the device at once.
        watchdog_s: How long a block's threads may all spin while no kernel and no work of a stream gets on, in this
            process or in one that shares the memory of the flags. Who compiles or loads does not get on.
        device: Which device this is; between devices only system scope orders memory.
    """

    mode: Mode = "fast"
    seed: int = 0
    num_workers: int = 1
    max_cooperative_blocks: int = 264
    watchdog_s: float = 10.0
    device: int = 0


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        kind: A letter of `KIND_NAMES`.
        size: In bytes.
        is_const: A pointer to what the kernel does not write.
    """

    kind: str
    size: int
    is_const: bool = False

    def __str__(self) -> str:
        return KIND_NAMES[self.kind] + ("" if self.kind in "pb" else str(8 * self.size))


class RawModule:
    """A compiled `.cu`.

    Args:
        code: CUDA source; or `path` to it.
        name_expressions: Template kernels to instantiate, such as `"norm<float, 4>"`.
        enable_cooperative_groups: All blocks of a launch run at once and may wait for each other.
        settings: How to run.

    Raises:
        SourceError: The source is refused. ToolchainError: there is no g++.
    """

    def __init__(
        self,
        *,
        code: str | None = None,
        path: Path | str | None = None,
        name_expressions: Sequence[str] = (),
        enable_cooperative_groups: bool = False,
        settings: Settings = Settings(),
    ) -> None:
        if (code is None) == (path is None):
            raise ValueError("give either code or path")
        file = "kernel.cu" if path is None else str(path)
        text = Path(file).read_text() if code is None else code
        load_runtime()
        library, self._entries = build_module(text, file, tuple(name_expressions), settings.mode)
        self._library = ctypes.CDLL(str(library))
        self._cooperative = enable_cooperative_groups
        self._settings = settings

    def get_function(self, name: str) -> "Kernel":
        """The kernel called `name`: an `extern "C"` one, or one of the name expressions.

        Raises:
            KeyError: There is none.
        """
        if name not in self._entries:
            raise KeyError(f"no kernel {name!r}; there are {sorted(self._entries)}")
        return Kernel(name, self._library, self._entries[name], self._settings, cooperative=self._cooperative)


class Kernel:
    """A kernel that can be launched."""

    def __init__(
        self, name: str, library: ctypes.CDLL, number: int, settings: Settings, *, cooperative: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self._library = library
        self._number = number
        self._cooperative = cooperative
        self.parameters = _parameters(library, number)
        self._kinds = "".join(parameter.kind for parameter in self.parameters).encode()

    def __call__(  # noqa: PLR0913 - CuPy's signature
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[object],
        *,
        shared_mem: int = 0,
        stream: CudaStream | None = None,
        keep: object = None,
    ) -> None:
        """Launches; without a stream, returns when the kernel has ended.

        Args:
            grid: 1-3 block counts. A zero among them launches nothing.
            block: 1-3 thread counts, at most 1024 in all.
            args: Device arrays and exact-width NumPy scalars, one for each parameter.
            shared_mem: Bytes of dynamic shared memory.
            stream: Run in this stream's order; errors are raised by its `synchronize`.
            keep: Lives until the launch has run: owners of memory that `args` holds by address.

        Raises:
            TypeError: An argument's kind or width is not the parameter's, or is a Python number.
            ValueError: A size is out of CUDA's limits.
            KernelError: The kernel failed.
        """
        sizes = _dimensions(grid), _dimensions(block)
        _check_sizes(*sizes, shared_mem)
        num_blocks, limit = math.prod(sizes[0]), self.settings.max_cooperative_blocks
        if self._cooperative and num_blocks > limit:
            raise ValueError(f"{self.name}: a cooperative launch of {num_blocks} blocks; at most {limit} run at once")
        packed = _pack(self.name, self.parameters, args)
        if stream is not None:

            def run(ticket: int, _keep: object = keep) -> None:
                self._run(*sizes, packed, shared_mem, ticket)

            stream.submit(run, uses=_uses(self.parameters, packed))
        else:
            self._run(*sizes, packed, shared_mem, 0)

    def _run(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], packed: "_Packed", shared_mem: int, ticket: int
    ) -> None:
        if 0 in grid:
            return
        request = LaunchRequest(
            entry=_address(self._library, f"emulator_entry_{self._number}"),
            args=ctypes.addressof(packed.pointers),
            kinds=self._kinds,
            num_args=len(self._kinds),
            shared_anchor=_address(self._library, "emulator_shared_anchor"),
            grid=grid,
            block=block,
            shared_bytes=shared_mem,
            num_workers=self.settings.num_workers,
            seed=self.settings.seed,
            cooperative=int(self._cooperative),
            checked=int(self.settings.mode == "check"),
            device=self.settings.device,
            ticket=ticket,
            watchdog_s=self.settings.watchdog_s,
        )
        report = ErrorReport()
        if load_runtime().emulator_launch(ctypes.byref(request), ctypes.byref(report)) != 0:
            raise kernel_error(self.name, report)


@dataclass(frozen=True)
class _Packed:
    """Arguments as the entry point reads them, and what must live until it has."""

    pointers: Any
    values: list[Any]
    arrays: Sequence[object]


def _pack(kernel: str, parameters: Sequence[Parameter], args: Sequence[object]) -> _Packed:
    if len(args) != len(parameters):
        raise TypeError(f"{kernel} takes {len(parameters)} arguments, {len(args)} were given")
    values = [_bytes_of(kernel, number, *pair) for number, pair in enumerate(zip(parameters, args, strict=True))]
    buffers = [ctypes.create_string_buffer(value, max(len(value), 1)) for value in values]
    pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(buffer) for buffer in buffers))
    return _Packed(pointers, buffers, args)


def _uses(parameters: Sequence[Parameter], packed: _Packed) -> list[Use]:
    return [
        Use(int.from_bytes(value.raw, sys.byteorder), writes=not parameter.is_const)
        for parameter, value in zip(parameters, packed.values, strict=True)
        if parameter.kind == "p"
    ]


def _bytes_of(kernel: str, number: int, parameter: Parameter, arg: object) -> bytes:
    if isinstance(arg, DeviceArray) and parameter.kind == "p":
        return np.uint64(arg.pointer).tobytes()
    if isinstance(arg, np.generic):
        is_address = parameter.kind == "p" and arg.dtype == np.uint64
        kind = {"V": "s"}.get(arg.dtype.kind, arg.dtype.kind)
        if (is_address or kind == parameter.kind) and arg.dtype.itemsize == parameter.size:
            return arg.tobytes()
        given = str(arg.dtype)
    else:
        given = type(arg).__name__
    raise TypeError(f"{kernel}: argument {number} is {given}, the parameter is {parameter}")


def _parameters(library: ctypes.CDLL, number: int) -> tuple[Parameter, ...]:
    describe = getattr(library, f"emulator_signature_{number}")
    describe.restype = ctypes.c_void_p
    address = describe()
    count = ctypes.string_at(address, 1)[0]
    text = ctypes.string_at(address + 1, 2 * count)
    return tuple(
        Parameter("p", size, is_const=True) if kind == ord("c") else Parameter(chr(kind), size)
        for kind, size in zip(text[:count], text[count:], strict=True)
    )


def _address(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def _dimensions(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"1 to 3 dimensions, not {len(sizes)}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _check_sizes(grid: tuple[int, int, int], block: tuple[int, int, int], shared_mem: int) -> None:
    if min(block) < 1 or block[0] * block[1] * block[2] > MAX_THREADS or block[2] > 64:
        raise ValueError(f"a block of {block} threads; the limits are {MAX_THREADS} in all and 64 in z")
    if min(grid) < 0 or grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
        raise ValueError(f"a grid of {grid} blocks; the limits are 2^31 - 1, 65535, 65535")
    if not 0 <= shared_mem <= MAX_SHARED_BYTES:
        raise ValueError(f"{shared_mem} bytes of shared memory; the limit is {MAX_SHARED_BYTES}")
