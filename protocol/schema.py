"""JSON Schema of every message of the native dialect, made from the structs: `python -m protocol.schema` prints it.

Both encodings carry the same maps. Rules that span fields (exactly one of `messages`, `prompt` and `prompt_tokens`) are
in `protocol.validation`; the Responses dialect is described by OpenAI.
"""

import sys
from typing import Any

import msgspec

from protocol.wire import StreamCommand, StreamEvent

_REFERENCES = "#/$defs/{name}"


def wire_schema() -> dict[str, Any]:
    """One schema: `$defs` has every message, `ClientMessage` and `ServerMessage` are the two unions."""
    (client, server), definitions = msgspec.json.schema_components(
        (StreamCommand, StreamEvent), ref_template=_REFERENCES
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tokenstage.v1",
        "description": "Messages of /v1/stream: a client sends ClientMessage, the server sends ServerMessage.",
        "anyOf": [{"$ref": "#/$defs/ClientMessage"}, {"$ref": "#/$defs/ServerMessage"}],
        "$defs": {**definitions, "ClientMessage": client, "ServerMessage": server},
    }


def main() -> None:
    """Print the schema."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(wire_schema()), indent=2).decode() + "\n")


if __name__ == "__main__":
    main()
