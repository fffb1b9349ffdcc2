"""What the emulator raises.

EmulatorError
├── ToolchainError   no usable g++: says what is missing and how to get it
├── SourceError      the .cu breaks a rule that the loader checks, or does not compile
└── KernelError      a launch failed: kind, block, thread and source lines
"""

from dataclasses import dataclass


class EmulatorError(RuntimeError):
    """Base of all."""


class ToolchainError(EmulatorError):
    """The C++ compiler is missing or too old."""


class SourceError(EmulatorError):
    """The source is refused by the loader or by the compiler; the message holds file:line."""


@dataclass(frozen=True)
class SourceLine:
    """A position in a kernel's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class KernelError(EmulatorError):
    """A kernel launch failed.

    Attributes:
        kind: What went wrong, for programs. In both modes: `memory-fault`, `out-of-bounds`, `arithmetic`, `trap`,
            `stack-overflow`, `misaligned` (copies and matrices), `launch-bounds`, `warp-misuse`, `divergent-warp`,
            `barrier-misuse`, `divergent-barrier`, `deadlock`, `watchdog`, `aborted` (by another's failure). In check
            mode also `race`, `uninitialised`, `pending-copy`, `misaligned` and `undefined` (overflow, index, shift).
        block, thread: 3-D indices of the thread that met it; `thread` is None when it concerns the whole block.
        where: Source line of the failing access or operation, if known.
        other: Source line of the access it conflicts with, if any.
    """

    def __init__(  # noqa: PLR0913 - one argument for each attribute
        self,
        kernel: str,
        *,
        kind: str,
        message: str,
        block: tuple[int, int, int],
        thread: tuple[int, int, int] | None,
        where: SourceLine | None,
        other: SourceLine | None,
    ) -> None:
        self.kernel = kernel
        self.kind = kind
        self.block = block
        self.thread = thread
        self.where = where
        self.other = other
        place = f"block {block}" + (f", thread {thread}" if thread is not None else "")
        text = f"{kernel}: {kind}: {message}\n  in {place}"
        if where is not None:
            text += f"\n  at {where}"
        if other is not None:
            text += f"\n  against {other}"
        super().__init__(text)
