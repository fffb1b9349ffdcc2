"""Encoders and decoders for messages between actors: msgpack, typed on arrival.

What a peer process sends is decoded against its inbox union, so a wrong message is refused at the door
(msgspec.ValidationError).
"""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

encode_message = msgspec.msgpack.Encoder().encode


def message_decoder(inbox: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: ANN401 - a union is no type[T]
    """A decoder for one typed inbox: a union of Message structs."""
    return msgspec.msgpack.Decoder(inbox)
