"""How fast the devices are that could form groups: compute, links and memory, measured before a group's size is chosen.

Values only: `__main__` is the process that measures, `cpu` and `gpu` are how. What is made of the figures is the
business of `actors.node.prediction`.
"""

import math

from msgspec import Struct

LIMIT_S = 60
"""Of the whole process. Most of it is for machines on which the CPU kernels have yet to be compiled."""


class Trial(Struct, frozen=True, kw_only=True):
    """What is to be measured: steps of `rows` rows by all devices at once, in groups of each of `sizes`."""

    kind: str
    """`cpu` or `cuda`."""
    devices: tuple[int, ...]
    """By number, in the order in which they form groups."""
    folder: str
    """A Hugging Face model folder."""
    dtype: str
    quantization: str
    rows: int
    hidden_size: int
    """E."""
    sizes: tuple[int, ...]
    """Ranks of a group; each divides the number of devices."""
    values: tuple[int, ...]
    """For each size: weights that the fullest rank reads in a step."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Of each CPU device that is a rank of several; () where ranks keep to none."""
    num_threads: int = 1
    """Of each CPU device."""


class Pace(Struct, frozen=True):
    """What was measured in groups of `size`; of several devices, the slowest."""

    size: int
    value_s: float
    """Seconds for each weight that a rank multiplies with all rows."""
    latency_s: float = 0.0
    """Of an exchange between the ranks, however little is exchanged."""
    link_bytes_per_s: float = math.inf
    hindrance: str = ""
    """Why these devices cannot form such groups; "" if they can."""


class TrialResult(Struct, frozen=True):
    """All that was found."""

    paces: tuple[Pace, ...]
    """One for each size."""
    item_bytes: int
    """Of a value in the KV pool and of an activation that is exchanged."""
    free_bytes: int
    """Of the device that has least; on the CPU, of the host."""


def fit_link(few: tuple[float, float], many: tuple[float, float]) -> tuple[float, float]:
    """(Latency in seconds, bytes a second) of a link from two exchanges, given as (bytes moved, seconds)."""
    more_bytes, more_s = many[0] - few[0], many[1] - few[1]
    if more_s <= 0:  # as quick: what was moved does not count
        return few[1], math.inf
    bytes_per_s = more_bytes / more_s
    return max(0.0, few[1] - few[0] / bytes_per_s), bytes_per_s


def moved_bytes(size: int, num_bytes: float) -> float:
    """What an all-reduce of `num_bytes` over `size` ranks moves through each rank's link at least."""
    return 2 * (size - 1) / size * num_bytes
