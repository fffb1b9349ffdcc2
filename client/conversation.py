"""A chat as a value: system prompt, turns, settings; saved and loaded as one JSON file."""

from pathlib import Path
from typing import Any

import msgspec

from client.errors import BadRequestError
from client.sampling_settings import check_settings
from protocol.wire import ChatMessage


class Conversation(msgspec.Struct, forbid_unknown_fields=True):
    """What is sent with the next question."""

    system: str = ""
    settings: dict[str, Any] = {}
    turns: list[ChatMessage] = []

    def messages(self) -> list[ChatMessage]:
        """All of it, in the order in which the model reads it."""
        system = [ChatMessage(role="system", content=self.system)] if self.system else []
        return [*system, *self.turns]

    def ask(self, text: str) -> None:
        """Add the user's turn."""
        self.turns.append(ChatMessage(role="user", content=text))

    def answered(self, text: str) -> None:
        """Add the model's turn; without any text the question is taken back, so that it can be asked again."""
        if text:
            self.turns.append(ChatMessage(role="assistant", content=text))
        else:
            self.turns.pop()

    def save(self, path: Path) -> None:
        """Write it. Raises OSError."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def load_conversation(path: Path) -> Conversation:
    """Read what `save` wrote. Raises OSError, BadRequestError."""
    try:
        conversation = msgspec.json.decode(path.read_bytes(), type=Conversation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{path} is no saved chat: {error}") from error
    check_settings(conversation.settings)
    return conversation
