"""Memory that GPUs share: plain cudaMalloc, which CUDA IPC exports whole and torch's allocator never touches."""

from typing import Any, Final

_UNIT: Final = 2 << 20
"""IPC maps pages of this size: whoever shared one with other memory would export that too."""
_LAZY_PEER_ACCESS: Final = 1
_ALREADY_ENABLED: Final = 704


class GpuSharing:
    """See `Sharing`. `runtime` is `cupy.cuda.runtime`, or what offers the same."""

    def __init__(self, runtime: Any, index: int) -> None:  # noqa: ANN401 - CuPy's
        self._runtime = runtime
        self._index = index
        self._made: set[int] = set()

    def make(self, num_bytes: int, name: str) -> int:  # noqa: ARG002 - CUDA makes its own names
        """See `Sharing`."""
        self._runtime.setDevice(self._index)
        size = -(-num_bytes // _UNIT) * _UNIT
        address = int(self._runtime.malloc(size))
        self._runtime.memset(address, 0, size)
        self._runtime.deviceSynchronize()
        self._made.add(address)
        return address

    def token(self, address: int) -> bytes:
        """See `Sharing`."""
        return bytes(self._runtime.ipcGetMemHandle(address))

    def open(self, token: bytes, num_bytes: int) -> int:  # noqa: ARG002 - the handle is of the whole allocation
        """See `Sharing`."""
        self._runtime.setDevice(self._index)
        return int(self._runtime.ipcOpenMemHandle(token, _LAZY_PEER_ACCESS))

    def reach(self, index: int) -> None:
        """See `Sharing`."""
        if index == self._index:
            return
        self._runtime.setDevice(self._index)
        if not self._runtime.deviceCanAccessPeer(self._index, index):
            raise RuntimeError(f"GPU {self._index} cannot address the memory of GPU {index}")
        try:
            self._runtime.deviceEnablePeerAccess(index)
        except RuntimeError as error:  # CuPy's
            if getattr(error, "status", None) != _ALREADY_ENABLED:
                raise

    def hide(self, address: int) -> None:
        """See `Sharing`. The driver frees what a dead process held."""

    def close(self, address: int) -> None:
        """See `Sharing`."""
        self._runtime.setDevice(self._index)
        if address in self._made:
            self._made.remove(address)
            self._runtime.free(address)
        else:
            self._runtime.ipcCloseMemHandle(address)
