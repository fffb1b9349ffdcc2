"""What a check says: one line of its table. Imports nothing that takes time."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "FAILED", "note"]


@dataclass(frozen=True)
class Finding:
    """About one thing."""

    subject: str
    outcome: Outcome
    measured: str = ""
    limit: str = ""
    """What it is measured against, or how to mend it."""


@dataclass(frozen=True)
class Begun:
    """What is looked at now: should the process die, it died of this."""

    subject: str
