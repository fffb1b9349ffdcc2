"""From one WebSocket message to one map of fields, for any bytes: the first step of both dialects.

Raises nothing but RequestError. Sizes are bounded by the socket's message limit, nesting by the decoder's recursion
limit.
"""

from typing import Literal

import msgspec

from protocol.errors import RequestError
from protocol.session import Frame

Encoding = Literal["json", "msgpack"]


def read_map(frame: Frame, encoding: Encoding) -> dict[str, object]:
    """Decode a frame; RequestError for what is not one map with text keys."""
    try:
        if encoding == "json":
            if not isinstance(frame, str):
                raise _unreadable("this connection speaks JSON in text frames; a binary frame came")
            value = msgspec.json.decode(frame)
        else:
            if isinstance(frame, str):
                raise _unreadable("this connection speaks msgpack in binary frames; a text frame came")
            value = msgspec.msgpack.decode(frame)
    except RecursionError as error:
        raise _unreadable("the frame is nested too deeply") from error
    except (ValueError, OverflowError) as error:  # msgspec's errors are ValueErrors, and so is a lone surrogate
        reason = "it is not valid Unicode" if isinstance(error, UnicodeError) else str(error)
        raise _unreadable(f"the frame is not valid {encoding}: {reason}") from error
    if not isinstance(value, dict):
        raise _unreadable("the frame is not an object")
    return value


def _unreadable(message: str) -> RequestError:
    return RequestError("invalid_request", message)
