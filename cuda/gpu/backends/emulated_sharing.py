"""Memory that emulated devices share: POSIX shared memory, which check mode watches across processes too."""

import numpy as np

from cuda.emulator import DeviceArray, unlink_shared


class EmulatedSharing:
    """See `Sharing`. A process's own devices address what it made where it made it."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._arrays: dict[int, DeviceArray] = {}

    def make(self, num_bytes: int, name: str) -> int:
        """See `Sharing`."""
        address = self._add(DeviceArray.shared(f"/{name}", (num_bytes,), np.uint8, create=True))
        self._names[address] = name
        return address

    def token(self, address: int) -> bytes:
        """See `Sharing`."""
        return self._names[address].encode()

    def open(self, token: bytes, num_bytes: int) -> int:
        """See `Sharing`."""
        return self._add(DeviceArray.shared(f"/{token.decode()}", (num_bytes,), np.uint8, create=False))

    def reach(self, index: int) -> None:
        """See `Sharing`."""

    def hide(self, address: int) -> None:
        """See `Sharing`."""
        unlink_shared(f"/{self._names[address]}")

    def close(self, address: int) -> None:
        """See `Sharing`."""
        self._arrays.pop(address).free()

    def _add(self, array: DeviceArray) -> int:
        self._arrays[array.pointer] = array
        return array.pointer
