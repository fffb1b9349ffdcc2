"""The slash commands of the chat: a line and the conversation in, words for the screen out. No terminal, no socket."""

from pathlib import Path

from msgspec import Struct

from client.conversation import Conversation, load_conversation
from client.errors import APIError, BadRequestError
from client.sampling_settings import SETTINGS, read_setting

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


class Outcome(Struct, frozen=True, kw_only=True):
    """What a command came to."""

    text: str = ""
    conversation: Conversation
    ends: bool = False


def run_command(line: str, conversation: Conversation, *, stats: str) -> Outcome:
    """Run one line that starts with a slash. Mistakes are answered in `text`, never raised."""
    name, _, rest = line.strip().partition(" ")
    try:
        return _run(name, rest.strip(), conversation, stats)
    except APIError as error:
        return Outcome(text=error.message, conversation=conversation)
    except OSError as error:
        return Outcome(text=f"{error.filename}: {error.strerror}", conversation=conversation)


def _run(name: str, rest: str, conversation: Conversation, stats: str) -> Outcome:
    text, ends = "", False
    match name:
        case "/help" | "/?":
            text = HELP
        case "/bye" | "/exit" | "/quit":
            ends = True
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
            conversation = load_conversation(_path(name, rest))
            text = f"loaded {len(conversation.turns)} turns from {rest}"
        case _:
            text = f"no command {name}; /help lists them"
    return Outcome(text=text, conversation=conversation, ends=ends)


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
