"""The client's side of the own dialect: commands to frames, frames to events.

A client is lenient where a server is strict: fields and event types that it does not know are ignored, so that a newer
server can say more. Read `protocol.wire` for the structs.
"""

from typing import get_args

import msgspec

from protocol.session import Encoding, Frame
from protocol.wire import StreamCommand, StreamEvent


class _Tag(msgspec.Struct, frozen=True):
    type: str


_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
_json_events = msgspec.json.Decoder(StreamEvent)
_msgpack_events = msgspec.msgpack.Decoder(StreamEvent)
_json_tags = msgspec.json.Decoder(_Tag)
_msgpack_tags = msgspec.msgpack.Decoder(_Tag)
_KNOWN = frozenset(kind.__struct_config__.tag for kind in get_args(StreamEvent))


def encode_command(command: StreamCommand, encoding: Encoding) -> Frame:
    """A frame to send: text for JSON, binary for msgpack."""
    if encoding == "json":
        return _json_encoder.encode(command).decode()
    return _msgpack_encoder.encode(command)


def decode_event(frame: Frame, encoding: Encoding) -> StreamEvent | None:
    """The event in a frame; None for a type this client does not know.

    Raises msgspec.DecodeError for a frame that no server of this protocol version sends.
    """
    try:
        event: StreamEvent = (
            _json_events.decode(frame) if encoding == "json" else _msgpack_events.decode(_binary(frame))
        )
    except msgspec.ValidationError:
        tag = _json_tags.decode(frame) if encoding == "json" else _msgpack_tags.decode(_binary(frame))
        if tag.type in _KNOWN:
            raise
        return None
    return event


def _binary(frame: Frame) -> bytes:
    if isinstance(frame, str):
        raise msgspec.DecodeError("a text frame came on a msgpack connection")
    return frame
