"""A chat as a value: system prompt, turns, settings; saved and loaded as one JSON file; changed by the slash commands.

A command is a line in, words for the screen out: no terminal, no socket. Read `client.chat` for the loop around it.
"""

from pathlib import Path
from typing import Any

import msgspec

from client.errors import APIError, BadRequestError
from client.fields import SETTINGS, check_settings, read_setting
from protocol.wire import ChatMessage

HELP = """\
/system [TEXT]      set the system prompt; without TEXT show it; /system - removes it
/set [NAME VALUE]   set a generation setting; /set NAME shows it, /set shows all, /set NAME - resets it
/clear              forget the conversation (system prompt and settings stay)
/save FILE          write the conversation to FILE
/load FILE          go on with a conversation from FILE
/stats              figures of the last answer
/help               this list
/bye                leave (also Ctrl-D)
Alt-Enter or a line that ends in \\ starts a new line; Ctrl-C stops an answer."""


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

    def load(self, path: Path) -> None:
        """Become what `save` wrote. Raises OSError, BadRequestError; then nothing has changed."""
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=Conversation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequestError(f"{path} is no saved chat: {error}") from error
        check_settings(saved.settings)
        self.system, self.settings, self.turns = saved.system, saved.settings, saved.turns


def run_command(line: str, conversation: Conversation, *, stats: str) -> str | None:
    """Run one line that starts with a slash: what is to be shown, None to end. Mistakes are shown, never raised."""
    name, _, rest = line.strip().partition(" ")
    try:
        return _run(name, rest.strip(), conversation, stats)
    except APIError as error:
        return error.message
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _run(name: str, rest: str, conversation: Conversation, stats: str) -> str | None:
    match name:
        case "/help" | "/?":
            text = HELP
        case "/bye" | "/exit" | "/quit":
            return None
        case "/stats":
            text = stats or "no answer yet"
        case "/system":
            text = _system(rest, conversation)
        case "/set":
            text = _set(rest, conversation)
        case "/clear":
            conversation.turns.clear()
            text = "conversation cleared"
        case "/save":
            conversation.save(_path(name, rest))
            text = f"saved {len(conversation.turns)} turns to {rest}"
        case "/load":
            conversation.load(_path(name, rest))
            text = f"loaded {len(conversation.turns)} turns from {rest}"
        case _:
            text = f"no command {name}; /help lists them"
    return text


def _system(rest: str, conversation: Conversation) -> str:
    if rest:
        conversation.system = "" if rest == "-" else rest
    return f"system prompt: {conversation.system or '(none)'}"


def _set(rest: str, conversation: Conversation) -> str:
    name, _, value = rest.partition(" ")
    name = name.replace("-", "_")
    if not name:
        shown = [f"{known:20}{conversation.settings.get(known, '(default)')}" for known in SETTINGS]
        return "\n".join(shown)
    if name in SETTINGS and not value.strip():
        return f"{name} = {conversation.settings.get(name, '(default)')}; {SETTINGS[name][1]}"
    if value.strip() == "-":
        conversation.settings.pop(name, None)
        return f"{name} is the model's default"
    conversation.settings[name] = read_setting(name, value.strip())
    return f"{name} = {conversation.settings[name]}"


def _path(name: str, rest: str) -> Path:
    if not rest:
        raise BadRequestError(f"{name} wants a file name")
    return Path(rest).expanduser()
