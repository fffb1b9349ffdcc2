"""`python -m client chat`: a conversation at the terminal; with piped standard input one question, one answer."""

import argparse
import asyncio
import sys

from msgspec import Struct

from client.client import Client
from client.conversation import Conversation, run_command
from client.errors import APIError, BadRequestError
from client.fields import flag_settings
from client.stream_state import Result
from client.terminal import Screen, complain, line_editor, until_interrupt


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


async def _answer_once(client: Client, conversation: Conversation, question: str) -> None:
    if not question.strip():
        raise BadRequestError("standard input is empty: nothing to ask")
    conversation.ask(question.rstrip("\n"))
    await Screen().show(client.stream(messages=conversation.messages(), **conversation.settings))


class Chat:
    """The loop: read a line, run a command or stream an answer, until /bye."""

    def __init__(self, client: Client, conversation: Conversation) -> None:
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
        return "\n".join(
            [
                self.footer(),
                f"prompt    {usage.prompt_tokens} tokens, {usage.cached_tokens} of them from the prefix cache",
                f"queue     {_ms(timing.queue_ms)}",
                f"server    TTFT {_ms(timing.ttft_ms)}, TPOT {_ms(timing.tpot_ms)}, total {_ms(timing.total_ms)}",
            ]
        )


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"
