"""A server-side WebSocket that never buffers without bound: it says when it is full, and then reads nothing either.

websockets' own `send` costs a coroutine for each frame and waits inside; here all frames of a tick leave in one write,
at once, and whoever writes looks at `is_writable` before. Owns no tasks and no clock. Read `connection` next.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidMessage
from websockets.protocol import State

from actors.ingress.http import refuse_unread
from protocol.session import Frame

_MAX_REQUEST_LINE = 8192


class ClientSocket(ServerConnection):
    """One client's socket, made by the server for each TCP connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed through
        super().__init__(*arguments, **options)
        self.tenant: str | None = None
        """Set while shaking hands; None: no valid key yet."""
        self.writable = asyncio.Event()
        """The client has caught up, or is gone."""
        self.writable.set()
        self._request_line = bytearray()
        self._is_refused = False

    @property
    def is_writable(self) -> bool:
        """The client keeps up: less than the write limit is unsent."""
        return not self.paused

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Write whole messages (text for str, binary for bytes) now; dropped when the socket is closing."""
        protocol = self.protocol
        if protocol.state is not State.OPEN or self.transport.is_closing():
            return
        for frame in frames:
            if isinstance(frame, str):
                protocol.send_text(frame.encode())
            else:
                protocol.send_binary(frame)
        self.transport.write(b"".join(protocol.data_to_send()))

    def data_received(self, data: bytes) -> None:
        """Keep the begin of a request: websockets reads none that has a body, and does not say what it was."""
        if self.request is None and len(self._request_line) < _MAX_REQUEST_LINE:
            self._request_line += data[:_MAX_REQUEST_LINE]
        super().data_received(data)

    def send_data(self) -> None:
        """Answer what is no request for a WebSocket or a page, where websockets would only hang up."""
        fault = self.protocol.handshake_exc
        if isinstance(fault, InvalidMessage) and not isinstance(fault.__cause__, EOFError) and not self._is_refused:
            self._is_refused = True
            self.transport.write(refuse_unread(bytes(self._request_line)).serialize())
        super().send_data()

    def abort(self) -> None:
        """Drop the TCP connection without a farewell: for clients that would not read one."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """The write buffer is full. A client that does not read may not write (its pings cost answers) either."""
        super().pause_writing()
        self.writable.clear()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        super().resume_writing()
        self.writable.set()
        if not self.recv_messages.paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for a client that is gone."""
        super().connection_lost(exc)
        self.writable.set()
