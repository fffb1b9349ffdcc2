"""`python -m client chat`: a conversation at the terminal; with piped standard input one question, one answer.

Chat is the loop, Conversation the value that the slash commands change and that is saved and loaded as one JSON file, a
command a line in and words for the screen out. The terminal itself is `client.terminal`.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from client.client import Client
from client.errors import APIError, BadRequestError
from client.fields import SETTINGS, check_settings, flag_settings, read_setting
from client.stream_state import Result
from client.terminal import Screen, complain, line_editor, until_interrupt
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


async def run_chat(flags: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises APIError when a one-shot answer fails."""
    conversation = Conversation(system=flags.system, settings=flag_settings(flags))
    async with Client(flags.url, flags.api_key) as client:
        await client.wait_until_ready(limit_s=flags.wait, say=complain)
        if not sys.stdin.isatty():
            await _answer_once(client, conversation, await asyncio.to_thread(sys.stdin.read))
        else:
            await Chat(client, conversation).run()
    return 0


async def _answer_once(client: Client, conversation: "Conversation", question: str) -> None:
    if not question.strip():
        raise BadRequestError("standard input is empty: nothing to ask")
    conversation.ask(question.rstrip("\n"))
    await Screen().show(client.stream(messages=conversation.messages(), **conversation.settings))


class Chat:
    """The loop: read a line, run a command or stream an answer, until /bye."""

    def __init__(self, client: Client, conversation: "Conversation") -> None:
        self._client = client
        self._conversation = conversation
        self._screen = Screen()
        self._stats = ""

    async def run(self) -> None:
        """Talk until the person leaves."""
        models = ", ".join(model.id for model in await self._client.models())
        self._screen.dim(f"{models} · /help lists the commands, /bye leaves")
        editor = line_editor()
        while True:
            try:
                line = await editor.prompt_async(">>> ", handle_sigint=False)
            except KeyboardInterrupt:
                continue  # Ctrl-C while typing drops the line
            except EOFError:
                return
            if not await self.take(line):
                return

    async def take(self, line: str) -> bool:
        """Handle one line; False ends the chat."""
        if line.startswith("/"):
            text = run_command(line, self._conversation, stats=self._stats)
            if text:
                self._screen.line(text)
            return text is not None
        if line.strip():
            await self._answer(line)
        return True

    async def _answer(self, question: str) -> None:
        self._conversation.ask(question)
        now = asyncio.get_running_loop().time
        sent_at, first_at, fault = now(), None, ""
        stream = self._client.stream(messages=self._conversation.messages(), **self._conversation.settings)
        try:
            async with until_interrupt(), stream:
                async for text in stream:
                    first_at = first_at or now()
                    self._screen.answer(text)
        except APIError as error:
            fault = error.message
        self._conversation.answered(stream.result.text)
        self._screen.line()
        stats = AnswerStats(
            result=stream.result, ttft_s=None if first_at is None else first_at - sent_at, total_s=now() - sent_at
        )
        self._stats = stats.full()
        self._screen.dim(f"error: {fault}" if fault else stats.footer())


class Conversation(Struct, forbid_unknown_fields=True):
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


class AnswerStats(Struct, frozen=True, kw_only=True):
    """Seconds are the caller's own clock: from sending to the first text, and to the last."""

    result: Result
    ttft_s: float | None
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """Speed after the first token; None for a single token."""
        if self.ttft_s is None or self.result.num_tokens < 2 or self.total_s <= self.ttft_s:
            return None
        return (self.result.num_tokens - 1) / (self.total_s - self.ttft_s)

    def footer(self) -> str:
        """One line."""
        parts = [f"{self.result.num_tokens} tokens"]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tok/s")
        if self.ttft_s is not None:
            parts.append(f"TTFT {self.ttft_s * 1000:.0f} ms")
        if self.result.finish_reason != "stop":
            parts.append(str(self.result.finish_reason or "broken off"))
        return " · ".join(parts)

    def full(self) -> str:
        """All figures, one a line; the server tells its own with the end, so a broken off answer has none."""
        if self.result.finish_reason in (None, "cancelled"):
            return self.footer()
        usage, timing = self.result.usage, self.result.timing
        return (
            f"{self.footer()}\n"
            f"prompt    {usage.prompt_tokens} tokens, {usage.cached_tokens} of them from the prefix cache\n"
            f"queue     {_ms(timing.queue_ms)}\n"
            f"server    TTFT {_ms(timing.ttft_ms)}, TPOT {_ms(timing.tpot_ms)}, total {_ms(timing.total_ms)}"
        )


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"
