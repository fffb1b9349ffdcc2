"""The line between the node and one child process: a socket pair. Down goes one spec, up come reports.

End of file down means "stop" (the node asks for it, or is dead); end of file up means that the child has ended.
"""

import asyncio
import socket
import struct

import msgspec
from msgspec import Struct

LENGTH = struct.Struct("<I")


class Report(Struct, frozen=True, tag=True):
    """Base of what a child says to the node."""


class Progressed(Report, frozen=True):
    """Loading has come this far, 0..1."""

    fraction: float


class Ready(Report, frozen=True):
    """The child can do its part: a worker has loaded, the ingress serves."""


ChildReport = Progressed | Ready
_report_decoder = msgspec.msgpack.Decoder(ChildReport)
_encode = msgspec.msgpack.Encoder().encode


class ParentEnd:
    """The node's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> "ParentEnd":
        """Take over `sock`."""
        return cls(*await asyncio.open_connection(sock=sock))

    def send_spec(self, spec: Struct) -> None:
        """Tell the child what it is; once."""
        payload = _encode(spec)
        self._writer.write(LENGTH.pack(len(payload)) + payload)

    def ask_to_stop(self) -> None:
        """Let the child end in an orderly way."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def receive(self) -> ChildReport | None:
        """Return the next report; None once the child has ended. Raises msgspec.DecodeError for no report."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return _report_decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Free the socket."""
        self._writer.close()


class ChildEnd:
    """The child's end."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def receive_spec(self) -> bytes:
        """Block until the node has told what this child is. Raises EOFError when the node is gone."""
        (length,) = LENGTH.unpack(self._receive_exactly(LENGTH.size))
        return self._receive_exactly(length)

    def report(self, report: ChildReport) -> None:
        """Tell the node; a node that is gone is noticed by `wait_stop`."""
        payload = _encode(report)
        try:
            self._socket.send(LENGTH.pack(len(payload)) + payload)
        except ConnectionError:
            return

    async def wait_stop(self) -> None:
        """Wait until the node asks to stop, or is gone."""
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_recv(self._socket, 1)

    def _receive_exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            if not piece:
                raise EOFError("the node has ended")
            data += piece
        return data
