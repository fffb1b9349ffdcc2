"""`python -m client chat`: a conversation at the terminal; with piped standard input one question, one answer."""

import argparse
import asyncio
import sys

from client.answer_stats import AnswerStats
from client.chat_commands import run_command
from client.client import Client
from client.conversation import Conversation
from client.errors import APIError, BadRequestError
from client.readiness import wait_until_ready
from client.sampling_settings import flag_settings
from client.terminal import Screen, complain, line_editor, until_interrupt


async def run_chat(flags: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises APIError when a one-shot answer fails."""
    conversation = Conversation(system=flags.system, settings=flag_settings(flags))
    async with Client(flags.url, flags.api_key) as client:
        await wait_until_ready(client, limit_s=flags.wait, say=complain)
        if not sys.stdin.isatty():
            await _answer_once(client, conversation, await asyncio.to_thread(sys.stdin.read))
        else:
            await Chat(client, conversation).run()
    return 0


async def _answer_once(client: Client, conversation: Conversation, question: str) -> None:
    if not question.strip():
        raise BadRequestError("standard input is empty: nothing to ask")
    conversation.ask(question.rstrip("\n"))
    async with client.stream(messages=conversation.messages(), **conversation.settings) as stream:
        await Screen().stream(stream)


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
            outcome = run_command(line, self._conversation, stats=self._stats)
            self._conversation = outcome.conversation
            if outcome.text:
                self._screen.line(outcome.text)
            return not outcome.ends
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
