"""Finding one stop string in text that arrives in pieces: Knuth, Morris and Pratt's automaton, built as it is used.

It knows at each moment how many of the last characters may yet become the stop string. Linear in the text whatever the
stop string is; a stop string of a megabyte costs nothing until text begins to match it.
"""


class StopString:
    """Feed text in order, until a match."""

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
