"""Which ids of one connection are running, which have ended, and which the client never used.

Owns the bookkeeping that makes "exactly one terminal event, nothing after it" true per connection. Memory is bounded:
at most MAX_LIVE running ids, and the MAX_ENDED youngest of those that ended.
"""

MAX_LIVE = 16_384
MAX_ENDED = 4_096


class LiveIds:
    """Ids from the frame that brings them to their terminal event."""

    def __init__(self) -> None:
        self._live: dict[str, bool] = {}
        """id -> muted: its terminal event is out already, the engine's own one is still to come."""
        self._ended: dict[str, None] = {}

    @property
    def is_full(self) -> bool:
        """No further id may begin until one ends."""
        return len(self._live) >= MAX_LIVE

    def begin(self, name: str) -> None:
        """`name` runs from now on."""
        self._ended.pop(name, None)
        self._live[name] = False

    def end(self, name: str) -> None:
        """`name` has its terminal event and may be used again."""
        self._live.pop(name, None)
        self._ended[name] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def mute(self, name: str) -> None:
        """The client was told the end of `name`; whatever the engine still says of it is dropped."""
        self._live[name] = True

    def is_live(self, name: str) -> bool:
        """It occupies its name, muted or not."""
        return name in self._live

    def is_heard(self, name: str) -> bool:
        """It runs and the client waits for its events."""
        return self._live.get(name) is False

    def was_used(self, name: str) -> bool:
        """It runs or ended lately: what still arrives about it is late, not wrong."""
        return name in self._live or name in self._ended
