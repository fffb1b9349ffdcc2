"""What `previous_response_id` refers to: the turns of this connection's recent responses.

Memory is bounded by MAX_KEPT responses and MAX_CHARACTERS of text; the least recently used go first. The youngest is
always kept: its size is bounded by the model's context.
"""

from protocol.wire import ChatMessage

MAX_KEPT = 256
MAX_CHARACTERS = 8 * 2**20


class Conversations:
    """Turns by response id, without instructions (those belong to one response only)."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[ChatMessage, ...]] = {}
        self._num_characters = 0

    def remember(self, response_id: str, turns: tuple[ChatMessage, ...]) -> None:
        """Keep all turns up to and with the answer `response_id`."""
        self._turns[response_id] = turns
        self._num_characters += _length(turns)
        while len(self._turns) > 1 and (len(self._turns) > MAX_KEPT or self._num_characters > MAX_CHARACTERS):
            self._num_characters -= _length(self._turns.pop(next(iter(self._turns))))

    def recall(self, response_id: str) -> tuple[ChatMessage, ...] | None:
        """The turns to go on from; None if it is unknown or forgotten."""
        turns = self._turns.pop(response_id, None)
        if turns is not None:
            self._turns[response_id] = turns
        return turns


def _length(turns: tuple[ChatMessage, ...]) -> int:
    return sum(len(turn.content) for turn in turns)
