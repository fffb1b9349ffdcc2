"""The client's side of the native dialect: frames to events, for a client is lenient where a server is strict.

Fields and event types that it does not know are ignored, so that a newer server can say more. Read `protocol.wire` for
the structs.
"""

from typing import Any, get_args

import msgspec

from protocol.session import Encoding, Frame
from protocol.wire import StreamEvent


class _Tag(msgspec.Struct, frozen=True):
    type: str


_DECODERS: dict[Encoding, tuple[Any, Any]] = {
    "json": (msgspec.json.Decoder(StreamEvent), msgspec.json.Decoder(_Tag)),
    "msgpack": (msgspec.msgpack.Decoder(StreamEvent), msgspec.msgpack.Decoder(_Tag)),
}
_KNOWN = frozenset(kind.__struct_config__.tag for kind in get_args(StreamEvent))


def decode_event(frame: Frame, encoding: Encoding) -> StreamEvent | None:
    """The event in a frame; None for a type this client does not know.

    Raises msgspec.DecodeError for a frame that no server of this protocol version sends.
    """
    if encoding == "msgpack" and isinstance(frame, str):
        raise msgspec.DecodeError("a text frame came on a msgpack connection")
    events, tags = _DECODERS[encoding]
    try:
        event: StreamEvent = events.decode(frame)
    except msgspec.ValidationError:
        tag: _Tag = tags.decode(frame)
        if tag.type in _KNOWN:
            raise
        return None
    return event
