"""Figures of one answer as the person at the terminal felt it, for the dim line under it and `/stats`."""

from msgspec import Struct

from client.result import Result


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
