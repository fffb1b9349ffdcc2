"""CUDA's calls for shared memory, in their order; the calls themselves need GPUs, here they are written down."""

from typing import Any

import pytest

from cuda.gpu.backends.sharing import GpuSharing

MIB = 1 << 20


class AlreadyEnabledError(RuntimeError):
    """As CuPy's CUDARuntimeError."""

    status = 704


class Runtime:
    """What is asked of `cupy.cuda.runtime`."""

    def __init__(self, *, can_access: bool = True, enabled: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._can_access, self._enabled = can_access, enabled

    def malloc(self, size: int) -> int:
        self.calls.append(("malloc", size))
        return 4096

    def ipcGetMemHandle(self, address: int) -> bytes:  # noqa: N802 - CUDA's name
        self.calls.append(("ipcGetMemHandle", address))
        return b"handle"

    def ipcOpenMemHandle(self, token: bytes, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("ipcOpenMemHandle", token, flags))
        return 8192

    def deviceCanAccessPeer(self, device: int, peer: int) -> bool:  # noqa: N802 - CUDA's name
        self.calls.append(("deviceCanAccessPeer", device, peer))
        return self._can_access

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802 - CUDA's name
        self.calls.append(("deviceEnablePeerAccess", peer))
        if self._enabled:
            raise AlreadyEnabledError

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


def test_memory_is_made_of_whole_units_and_zeroed_before_anybody_is_told() -> None:
    runtime = Runtime()
    sharing = GpuSharing(runtime, 3)
    assert sharing.token(sharing.make(3 * MIB, "name")) == b"handle"
    assert runtime.calls == [
        ("setDevice", 3),
        ("malloc", 4 * MIB),
        ("memset", 4096, 0, 4 * MIB),
        ("deviceSynchronize",),
        ("ipcGetMemHandle", 4096),
    ]


def test_what_was_made_is_freed_and_what_was_opened_is_closed() -> None:
    runtime = Runtime()
    sharing = GpuSharing(runtime, 0)
    made, opened = sharing.make(1, "name"), sharing.open(b"other", 1)
    del runtime.calls[:]
    sharing.close(opened)
    sharing.close(made)
    assert runtime.calls == [("setDevice", 0), ("ipcCloseMemHandle", 8192), ("setDevice", 0), ("free", 4096)]


def test_a_peer_of_the_same_process_is_reached_once_and_oneself_always() -> None:
    runtime = Runtime(enabled=True)
    sharing = GpuSharing(runtime, 1)
    sharing.reach(1)
    assert runtime.calls == []
    sharing.reach(0)
    assert runtime.calls[-1] == ("deviceEnablePeerAccess", 0)


def test_a_gpu_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(RuntimeError, match="GPU 1 cannot address the memory of GPU 0"):
        GpuSharing(Runtime(can_access=False), 1).reach(0)
