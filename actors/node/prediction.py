"""How many devices should share out a model: how long the steps of each size of group are, by prediction.

    t(p) = T_compute / p + for each all-reduce: 2 (p - 1) / p * M_act / BW_link + latency

where T_compute / p is that of the fullest rank. The aim is the shortest step of a small batch, which is what a user
waits for; devices that a group leaves over are its replicas. Arithmetic only: `cuda.check.trial` measures the
figures, `actors.node.grouping` asks it to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.node.group_memory import Memory, Room, Wanted, find_room, read_values
from cuda.check.trial import Pace, moved_bytes
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec, UnsupportedModel

ROWS = 8
"""Of the steps that are compared: a few users at a time."""
_LOGIT_BYTES = 4


@dataclass(frozen=True)
class Candidate:
    """Groups of one size."""

    size: int
    """p, their ranks."""
    num_groups: int
    hindrance: str = ""
    """Why they cannot be; "" if they can."""
    room: Room | None = None
    """None: nobody knows how much memory there is, or the model cannot be shared out so."""
    compute_s: float | None = None
    """Of a step; None: the devices were not timed."""
    exchange_s: float | None = None
    """Likewise, of what the ranks exchange in a step."""

    @property
    def step_s(self) -> float | None:
        """Predicted seconds of a step of `ROWS` rows."""
        return None if self.compute_s is None or self.exchange_s is None else self.compute_s + self.exchange_s


@dataclass(frozen=True)
class Choice:
    """A size and why."""

    size: int
    reason: str


def sizes_of(num_devices: int) -> tuple[int, ...]:
    """Sizes of groups that leave no device over."""
    return tuple(size for size in range(1, num_devices + 1) if num_devices % size == 0)


def shards_by_size(spec: ModelSpec, num_devices: int) -> dict[int, tuple[Shard, ...] | str]:
    """For each size: the ranks' parts of the model, or why it cannot be shared out so."""
    shards: dict[int, tuple[Shard, ...] | str] = {}
    for size in sizes_of(num_devices):
        try:
            shards[size] = split(spec, size)
        except UnsupportedModel as error:
            shards[size] = str(error)
    return shards


def fullest(spec: ModelSpec, shards: Sequence[Shard]) -> int:
    """Weights that the rank with most of them reads in a step."""
    return max(read_values(spec, shard) for shard in shards)


def candidates(
    num_devices: int, wanted: Wanted, memory: Memory | None, paces: Sequence[Pace] = ()
) -> tuple[Candidate, ...]:
    """All sizes that so many devices can have. Without `memory` each fits, without its pace none has a time."""
    by_size = {pace.size: pace for pace in paces}
    found = []
    for size, shards in shards_by_size(wanted.spec, num_devices).items():
        num_groups = num_devices // size
        if isinstance(shards, str):
            found.append(Candidate(size, num_groups, shards))
            continue
        room = None if memory is None else find_room(shards, num_groups, wanted, memory)
        lack = "" if room is None else room.lack
        found.append(_timed(Candidate(size, num_groups, lack, room), wanted, shards, by_size.get(size)))
    return tuple(found)


def choose(tried: Sequence[Candidate]) -> Choice:
    """Return the size with the shortest step of those that can be; the smallest, if they were not timed."""
    possible = [candidate for candidate in tried if not candidate.hindrance]
    if not possible:
        least = max((candidate for candidate in tried if candidate.room is not None), key=lambda each: each.size)
        return Choice(least.size, f"nothing fits ({least.hindrance}), this size needs least of each device")
    timed = [(candidate.step_s, candidate.size) for candidate in possible if candidate.step_s is not None]
    if len(possible) == 1:
        return Choice(possible[0].size, "the only size that can be")
    if len(timed) < len(possible):
        return Choice(possible[0].size, "the smallest that can be")
    (step_s, size), *others = sorted(timed)
    compared = ", ".join(f"{1e3 * other_s:.2f} ms with tp {other}" for other_s, other in others)
    return Choice(size, f"its step of {ROWS} rows is predicted to take {1e3 * step_s:.2f} ms, {compared}")


def exchange_time(size: int, wanted: Wanted, pace: Pace) -> float:
    """Seconds of a step's exchanges: two sums a layer, that of the embeddings, and every rank's logits."""
    if size == 1:
        return 0.0
    spec = wanted.spec
    num_sums = 2 * spec.num_layers + 1
    sums = num_sums * moved_bytes(size, ROWS * spec.hidden_size * wanted.item_bytes)
    logits = (size - 1) / size * ROWS * spec.vocab_size * _LOGIT_BYTES
    return (num_sums + 1) * pace.latency_s + (sums + logits) / pace.link_bytes_per_s


def _timed(candidate: Candidate, wanted: Wanted, shards: Sequence[Shard], pace: Pace | None) -> Candidate:
    if pace is None:
        return candidate
    size, hindrance = candidate.size, candidate.hindrance or pace.hindrance
    compute_s = fullest(wanted.spec, shards) * pace.value_s
    exchange_s = None if pace.hindrance else exchange_time(size, wanted, pace)
    return Candidate(size, candidate.num_groups, hindrance, candidate.room, compute_s, exchange_s)
