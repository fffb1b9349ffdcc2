"""NVIDIA's run-time compiler, through ctypes: CUDA source to machine code, without a GPU, a driver or CuPy.

Finds the library and the toolkit's headers among the installed packages. Knows nothing of our kernels and caches
nothing: `cubins` does. What the GPU's side raises beside what torch and CuPy raise:

BackendError
├── MissingPart    something is not there to run on or to compile with: one line, what it is and how to get it
└── CompileError   NVRTC refuses a source: its own words, with file and line
"""

import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_INSTALL = "run `pip install 'tokenstage[cuda]'`"
_BUILD = re.compile(r"Cuda compilation tools, release [\d.]+, V([\d.]+)")


class BackendError(RuntimeError):
    """Base of all."""


class MissingPart(BackendError):  # noqa: N818 - it names what is wrong, like PartFailed
    """A GPU, a driver or a package is missing, or is not one that the kernels are made for."""


class CompileError(BackendError):
    """The source of a kernel is refused by its compiler."""


@dataclass(frozen=True)
class Program:
    """What the compiler made of one source."""

    cubin: bytes
    ptx: str
    log: str
    """Its warnings, and what ptxas says of each kernel."""
    lowered: dict[str, str]
    """The name in the cubin of each name expression."""


@functools.cache
def find_compiler() -> "Compiler":
    """The compiler that is installed as a Python package; MissingPart if there is none."""
    namespace = importlib.util.find_spec("nvidia")
    folders = (
        [] if namespace is None else [Path(place) / "cu13" for place in namespace.submodule_search_locations or ()]
    )
    for folder in folders:
        if (folder / "lib" / "libnvrtc.so.13").exists() and (folder / "include" / "cuda_bf16.h").exists():
            return Compiler(folder)
    raise MissingPart(
        f"kernels are compiled by NVRTC 13, and it or the toolkit's headers are not installed: {_INSTALL}"
    )


class Compiler:
    """A loaded NVRTC; threads may compile at the same time.

    Attributes:
        version: Such as "13.5.37": another one may give other code.
        include: The folder of the toolkit's headers.
    """

    def __init__(self, toolkit: Path) -> None:
        self.include = toolkit / "include"
        for builtins in sorted((toolkit / "lib").glob("libnvrtc-builtins.so.*")):
            # NVRTC opens it by its bare name, which some releases find only if it is loaded already.
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(toolkit / "lib" / "libnvrtc.so.13"))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        found = _BUILD.search(self.compile("", "empty.cu", (), ("-arch=sm_80",)).ptx)
        if found is None:
            raise MissingPart(f"{toolkit / 'lib'} holds an NVRTC that does not name its version: {_INSTALL}")
        self.version = found[1]

    def compile(self, code: str, file: str, names: Sequence[str], options: Sequence[str]) -> Program:
        """Compile `code`; `file` is its path in messages. CompileError if it is refused.

        Args:
            code: CUDA source.
            file: The path that messages name.
            names: Name expressions, such as "scale<float, 4>", to instantiate.
            options: Of nvrtcCompileProgram; among them `-arch=sm_…`, for without it there is no cubin.
        """
        with self._program(code, file) as program:
            for name in names:
                self._call("nvrtcAddNameExpression", program, name.encode())
            encoded = [option.encode() for option in options]
            status = self._library.nvrtcCompileProgram(
                program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
            )
            log = self._text("ProgramLog", program).decode(errors="replace").rstrip("\0").strip()
            if status != 0:
                raise CompileError(f"NVRTC {self._says(status)}:\n{log}")
            ptx = self._text("PTX", program).decode().rstrip("\0")
            lowered = {name: self._lowered(program, name) for name in names}
            return Program(self._text("CUBIN", program), ptx, log, lowered)

    @contextmanager
    def _program(self, code: str, file: str) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), code.encode(), file.encode(), 0, None, None)
        try:
            yield program
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _lowered(self, program: ctypes.c_void_p, name: str) -> str:
        lowered = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(lowered))
        return (lowered.value or b"").decode()

    def _call(self, function: str, *args: object) -> None:
        call: Callable[..., int] = getattr(self._library, function)
        if (status := call(*args)) != 0:
            raise CompileError(f"NVRTC: {function}: {self._says(status)}")

    def _says(self, status: int) -> str:
        words: bytes = self._library.nvrtcGetErrorString(status)
        return words.decode()
