"""The person's terminal: line editing with history, plain or dim output, and Ctrl-C as a value.

Without a terminal on the other side nothing but the model's text is written: no escape codes.
"""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from client.errors import APIError
from client.stream import Stream

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a model must not send to a terminal: escape sequences begin with one of these."""


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._has_color = self._is_terminal and "NO_COLOR" not in os.environ

    def answer(self, text: str) -> None:
        """A piece of the model's text, at once."""
        print(text.translate(_CONTROL) if self._is_terminal else text, end="", flush=True)

    async def show(self, stream: Stream) -> None:
        """Run a generation and show its text as it comes; its line is ended although it may break off."""
        begun = False
        try:
            async with stream:
                async for text in stream:
                    self.answer(text)
                    begun = True
        except APIError:
            if begun:
                self.line()
            raise
        self.line()

    def line(self, text: str = "") -> None:
        """A line of the program's own."""
        print(text, flush=True)

    def dim(self, text: str) -> None:
        """A line that matters less."""
        self.line(f"\x1b[2m{text}\x1b[0m" if self._has_color else text)


def complain(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


def line_editor() -> PromptSession[str]:
    """Enter sends, Alt-Enter (or a backslash before Enter) starts a new line; history is kept between sessions."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return PromptSession(history=_history(), multiline=True, key_bindings=keys, prompt_continuation="... ")


def _history() -> History:
    """What was typed in earlier sessions; of this session only, where no file can be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tokenstage"
    file = folder / "chat_history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


@asynccontextmanager
async def until_interrupt() -> AsyncIterator[None]:
    """Run the block until it ends or Ctrl-C is pressed; then it is left quietly."""
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    loop.add_signal_handler(signal.SIGINT, lambda: scope.reschedule(loop.time()))
    try:
        with _keys_unseen():
            async with scope:
                yield
    except TimeoutError:
        if not scope.expired():
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _keys_unseen() -> Iterator[None]:
    """What is typed meanwhile is kept for the next prompt; the terminal would show it in the middle of the answer."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
