"""What happened to one request of a benchmark: moments on the benchmark's clock and counts."""

from msgspec import Struct


class Outcome(Struct, kw_only=True):
    """Filled in while the answer arrives. `code` None is success; moments are seconds on one monotonic clock."""

    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    gaps_s: list[float] = []
    """Between output tokens after the first, as they arrived: tokens of one frame have a gap of 0 after its first."""
    input_tokens: int = 0
    output_tokens: int = 0
    code: str | None = None
    message: str = ""

    def tokens_arrived(self, count: int, now: float) -> None:
        """`count` more output tokens are here."""
        if self.first_at is None or self.last_at is None:
            self.first_at = now
        else:
            self.gaps_s.append(now - self.last_at)
        self.gaps_s.extend([0.0] * (count - 1))
        self.last_at = now

    def failed(self, code: str, message: str, now: float) -> None:
        """It ended without an answer."""
        self.code, self.message, self.ended_at = code, message, now

    @property
    def ttft_ms(self) -> float | None:
        """Sent to first output token."""
        return None if self.first_at is None else 1000 * (self.first_at - self.sent_at)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first, from the counts; None for fewer than two."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return 1000 * (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def e2el_ms(self) -> float | None:
        """Sent to end."""
        return None if self.ended_at is None else 1000 * (self.ended_at - self.sent_at)
