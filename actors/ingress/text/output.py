"""The text of one request's output, as it may be sent: whole characters, whole tokens, and nothing of a stop string.

What is counted and what is sent always belong together: after each piece, all text sent so far = decode(all tokens
counted so far). So text is released at the ends of tokens only, and a token whose text is not yet certain (half a
character) or may yet become a stop string waits, uncounted, with all after it. `finish` releases what waits.
Owns the waiting tokens' text; knows no sockets and no credit.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from actors.ingress.text.model import TextModel


class Piece(NamedTuple):
    """The next tokens of an output, at least one, and their text ("" for special tokens, such as end-of-sequence)."""

    num_tokens: int
    text: str
    stop: str | None
    """The stop string that ended the output just behind `text`. The tokens it was found in are counted."""


class OutputText:
    """Push tokens as they are sampled, in groups of any size: grouping moves the cuts between pieces and nothing else.

    The stop string whose last character comes first wins (of two that end together the longer), is removed with all
    behind it, and ends the output: tokens pushed later are ignored. Text that becomes certain with one of the first
    `min_tokens` tokens is not searched. To go on after a restart, push the tokens emitted before and drop the pieces.
    """

    def __init__(self, model: TextModel, *, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._stream = model.open_stream()
        self._stops = [StopString(string) for string in stop]
        self._min_tokens = min_tokens
        self._num_pushed = 0
        self._whole: deque[tuple[int, str]] = deque()
        """Not sent yet: (number of tokens, their text), cut where text is certain."""
        self._num_open = 0
        """Tokens behind the last cut."""
        self._open_text = ""
        """Certain text behind the last cut; the text of its last token is not."""
        self._unsent_length = 0
        """Characters in `_whole` and `_open_text`."""
        self._ended = False

    def push(self, tokens: Sequence[int]) -> Piece | None:
        """Take the next tokens; returns what may be sent now, None if nothing."""
        for token in tokens:
            if self._ended:
                return None
            last = self._take(token)
            if last is not None:
                return last
        return self._release(max([stop.held for stop in self._stops]) if self._stops else 0)

    def finish(self) -> Piece | None:
        """Release all that waits: no more tokens come. Text that becomes certain only now is searched too."""
        if self._ended:
            return None
        last = self._add_text(self._stream.finish())
        if last is not None:
            return last
        self._ended = True
        self._cut()
        return self._release(0)

    def _take(self, token: int) -> Piece | None:
        """The last piece, if a stop string ends here."""
        text = self._stream.push(token)
        self._num_pushed += 1
        self._num_open += 1
        last = self._add_text(text) if text else None
        if last is None and not self._stream.pending:
            self._cut()
        return last

    def _add_text(self, text: str) -> Piece | None:
        if self._stops and self._num_pushed > self._min_tokens:
            matches = [
                (end, -len(stop.stop), stop.stop) for stop in self._stops if (end := stop.feed(text)) is not None
            ]
            if matches:
                return self._end(text, *min(matches))
        self._open_text += text
        self._unsent_length += len(text)
        return None

    def _end(self, text: str, end: int, minus_length: int, stop: str) -> Piece:
        self._ended = True
        unsent = "".join([part for _, part in self._whole]) + self._open_text
        num_tokens = sum(number for number, _ in self._whole) + self._num_open
        self._whole.clear()
        return Piece(num_tokens, (unsent + text)[: len(unsent) + end + minus_length], stop)

    def _cut(self) -> None:
        if self._num_open:
            self._whole.append((self._num_open, self._open_text))
            self._num_open, self._open_text = 0, ""

    def _release(self, num_held: int) -> Piece | None:
        """Send whole tokens, as many as leave the last `num_held` characters unsent."""
        num_tokens, parts = 0, []
        while self._whole and self._unsent_length - len(self._whole[0][1]) >= num_held:
            number, text = self._whole.popleft()
            num_tokens += number
            parts.append(text)
            self._unsent_length -= len(text)
        return Piece(num_tokens, "".join(parts), None) if num_tokens else None


class StopString:
    """Finds one stop string in text that arrives in pieces: feed it in order, until a match.

    Knuth, Morris and Pratt's automaton, built as it is used: it knows at each moment how many of the last characters
    may yet become the stop string. Linear in the text whatever the stop string is; one of a megabyte costs nothing
    until text begins to match it.
    """

    __slots__ = ("_borders", "held", "stop")

    def __init__(self, stop: str) -> None:
        """`stop` has at least one character."""
        self.stop = stop
        self.held = 0
        """Number of last characters that are a beginning of `stop` (the most that are)."""
        self._borders = [0]
        """[k - 1] → length of the longest proper prefix of stop[:k] that is also its suffix; grown as `held` grows."""

    def feed(self, text: str) -> int | None:
        """Index into `text` just behind the first match, or None."""
        position = 0
        while position < len(text):
            if not self.held:
                position = text.find(self.stop[0], position)
                if position < 0:
                    return None
            self._step(text[position])
            position += 1
            if self.held == len(self.stop):
                return position
        return None

    def _step(self, character: str) -> None:
        while self.held and self.stop[self.held] != character:
            self.held = self._borders[self.held - 1]
        if self.stop[self.held] == character:
            self.held += 1
            if self.held > len(self._borders):
                self._borders.append(self._border(self.held))

    def _border(self, length: int) -> int:
        last = self.stop[length - 1]
        border = self._borders[length - 2]
        while border and self.stop[border] != last:
            border = self._borders[border - 1]
        return border + (self.stop[border] == last)
