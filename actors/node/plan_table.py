"""The sizes of groups that were compared, as `--print-plan` shows them."""

from collections.abc import Collection, Sequence

from actors.node.prediction import Candidate

MIB = 1 << 20
_HEADS = ("", "tp", "groups", "fits", "weights/rank", "KV tokens/group", "compute ms", "exchange ms", "step ms", "")


def table(tried: Sequence[Candidate], chosen: Collection[int]) -> str:
    """Return a line for each; a star before those of a size in `chosen`, what hinders the others behind them."""
    rows = [_HEADS, *(_cells(candidate, candidate.size in chosen) for candidate in tried)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _cells(candidate: Candidate, is_chosen: bool) -> tuple[str, ...]:  # noqa: FBT001 - one cell
    room = candidate.room
    times = (candidate.compute_s, candidate.exchange_s, candidate.step_s)
    return (
        "*" if is_chosen else "",
        str(candidate.size),
        str(candidate.num_groups),
        "no" if candidate.hindrance else "yes" if room else "?",
        f"{room.weights_bytes / MIB:,.0f} MiB" if room else "-",
        f"{room.kv_tokens:,}" if room else "-",
        *("-" if seconds is None else f"{1e3 * seconds:.3f}" for seconds in times),
        candidate.hindrance,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    *figures, words = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join((*figures, words.strip())).rstrip()
