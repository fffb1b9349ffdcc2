"""`--check`: whether this machine's devices do what they should; prints a table. Starts no node and loads no model.

Each device is checked in a process of its own, which may crash or hang; pairs of devices prove that they reach each
other's memory. Read `cuda.check.device` for what is checked, `cuda.check.peers.proof` for the pairs.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from actors.node.devices import find_gpus, lack_of
from cuda.check.findings import Begun, Finding
from cuda.check.peers.proof import Link, prove, prove_sum, verdict
from cuda.check.watched import Lost, watched

SILENCE_S = 180.0
"""For one case: the first on a machine compiles its kernel."""
PLAIN_WIDTH = 240
"""Of a table that no terminal limits."""
MAX_RANKS = 8
"""Of a group."""

Row = tuple[str, Finding]


def check(devices: Sequence[str], output: Console | None = None) -> int:
    """Check `devices` and print what was found; returns 1 if anything failed, else 0."""
    console = output or Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    with console.status("checking") as status:
        rows = list(_findings(devices, lambda what: status.update(f"checking {what}")))
        links: list[Link] = []
        for alike in _kinds(devices):
            status.update(f"checking what {', '.join(alike)} can do to each other's memory")
            found = prove(alike)
            links += found
            if verdict(found) is None:
                rows.append((alike[0].partition(":")[0], _sum_finding(alike[:MAX_RANKS])))
    console.print(_table(rows, plain=not console.is_terminal))
    if links:
        console.print(_matrix(links, plain=not console.is_terminal))
    failures = [f"{device}: {found.subject}: {found.measured}" for device, found in rows if found.outcome == "FAILED"]
    failures += [link.line for link in links if link.fitness != "ok"]
    for failure in failures:
        console.print(f"FAILED {failure}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(failures)} failed" if failures else "everything is in order", highlight=False)
    return 1 if failures else 0


def _findings(devices: Sequence[str], show: Callable[[str], None]) -> Iterator[Row]:
    """All devices one after the other; those of a kind that share the hardware once."""
    if not any(device.startswith("cuda") for device in devices) and (hindrance := find_gpus().hindrance):
        yield "cuda", Finding("GPUs", "note", "none is used", hindrance)
    shown = set()
    for device in devices:
        hardware = device if device.startswith("cuda") else device.partition(":")[0]
        if hardware not in shown:
            shown.add(hardware)
            for found in _findings_of(device, show):
                yield hardware, found


def _findings_of(device: str, show: Callable[[str], None]) -> Iterator[Finding]:
    if lack := lack_of(device):
        yield Finding("device", "FAILED", lack)
        return
    if device.startswith("counting"):
        yield Finding("counting device", "note", "computes nothing: there is nothing to check")
        return
    subject = "start"
    try:
        for report in watched(_check_device, device, silence_s=SILENCE_S):
            if isinstance(report, Begun):
                subject = report.subject
                show(f"{device}: {subject}")
            else:
                yield report
    except Lost as lost:
        yield Finding(subject, "FAILED", str(lost))


def _check_device(report: Callable[[Any], None], device: str) -> None:
    from cuda.check.device import check_device  # noqa: PLC0415 - imports torch, in the device's process only

    check_device(report, device)


def _kinds(devices: Sequence[str]) -> Iterator[list[str]]:
    """Several devices of one kind each time: nobody shares out a model over different ones."""
    for kind in ("cuda", "emu", "cpu"):
        alike = [device for device in devices if device.startswith(kind) and not lack_of(device)]
        if len(alike) > 1:
            yield alike


def _sum_finding(devices: Sequence[str]) -> Finding:
    wrong = prove_sum(devices)
    return Finding(f"all-reduce of {','.join(devices)}", "FAILED" if wrong else "ok", wrong or "equal")


def _table(rows: Sequence[Row], *, plain: bool) -> Table:
    table = Table(box=None if plain else SIMPLE)
    for name in ("device", "what", "", "measured", "limit"):
        table.add_column(name, overflow="fold")
    styles = {"ok": "green", "FAILED": "bold red", "note": "dim"}
    for device, found in rows:
        outcome = f"[{styles[found.outcome]}]{found.outcome}[/]"
        table.add_row(device, _literal(found.subject), outcome, _literal(found.measured), _literal(found.limit))
    return table


def _matrix(links: Sequence[Link], *, plain: bool) -> Table:
    """Who writes, a row; whose memory, a column."""
    devices = list(dict.fromkeys(link.source for link in links))
    table = Table("peer-to-peer from", *devices, box=None if plain else SIMPLE)
    cells = {(link.source, link.target): _cell(link) for link in links}
    for source in devices:
        table.add_row(source, *(cells.get((source, target), "-") for target in devices))
    return table


def _cell(link: Link) -> str:
    if link.fitness != "ok":
        return f"[bold red]{link.fitness}[/]"
    if link.source.startswith("emu"):
        return "ok"  # its speed is nobody's
    return f"{link.bandwidth / 1e9:.1f} GB/s {link.latency_s * 1e6:.1f} us"


def _literal(text: str) -> str:
    return text.replace("[", r"\[")
