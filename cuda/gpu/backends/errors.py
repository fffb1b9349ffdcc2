"""What the GPU's side raises beside what torch and CuPy raise.

BackendError
├── MissingPart    something is not there to run on or to compile with: one line, what it is and how to get it
└── CompileError   NVRTC refuses a source: its own words, with file and line
"""


class BackendError(RuntimeError):
    """Base of all."""


class MissingPart(BackendError):  # noqa: N818 - it names what is wrong, like PartFailed
    """A GPU, a driver or a package is missing, or is not one that the kernels are made for."""


class CompileError(BackendError):
    """The source of a kernel is refused by its compiler."""
