"""Which dialect a new connection speaks: by its path and the subprotocol agreed on."""

import secrets
import time

from actors.ingress.client_socket import ClientSocket
from actors.ingress.http import VERSION
from actors.ingress.server import RESPONSES_PATH, path_of
from actors.ingress.status import EngineStatus
from protocol.model_info import ModelInfo
from protocol.native.session import NativeSession
from protocol.responses import ResponsesSession
from protocol.session import Session
from protocol.wire import MSGPACK_SUBPROTOCOL, PROTOCOL_VERSION, Hello


def new_session(socket: ClientSocket, model: ModelInfo, status: EngineStatus, max_message_bytes: int) -> Session:
    """The session of a socket that has just shaken hands."""
    if socket.request is not None and path_of(socket.request) == RESPONSES_PATH:
        return ResponsesSession(
            models=(model.name,), max_model_len=status.max_model_len, new_id=_new_id, clock=time.time
        )
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        server=f"tokenstage/{VERSION}",
        models=[model.name],
        max_model_len=status.max_model_len,
        max_message_bytes=max_message_bytes,
        authenticated=socket.tenant is not None,
    )
    return NativeSession("msgpack" if socket.subprotocol == MSGPACK_SUBPROTOCOL else "json", hello=hello)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
