"""A step cut into passes that fit a device's buffers."""

from collections.abc import Iterator, Sequence

from protocol.step import StepRow


def passes(rows: Sequence[StepRow], max_tokens: int) -> Iterator[list[StepRow]]:
    """Cut a step into passes of at most `max_tokens` tokens, in order; a row samples in the pass of its last token."""
    taken: list[StepRow] = []
    room = max_tokens
    for row in rows:
        rest = row
        while rest.count > room:
            if room:
                taken.append(StepRow(rest.slot, rest.start, room, samples=False))
                rest = StepRow(rest.slot, rest.start + room, rest.count - room, rest.samples)
            yield taken
            taken, room = [], max_tokens
        taken.append(rest)
        room -= rest.count
    if taken:
        yield taken
