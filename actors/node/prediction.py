"""What groups of each size would be like, by prediction: what they need of the memory, how long their steps take.

    t(p) = T_compute / p + for each all-reduce: 2 (p - 1) / p * M_act / BW_link + latency

where T_compute / p is that of the fullest rank. The aim is the shortest step of a small batch, which is what a user
waits for; devices that a group leaves over are its replicas. Sizes of weights are upper bounds: a CPU device packs what
it can without loss. Arithmetic only: `cuda.check.trials` measures the figures, `actors.node.grouping` asks it to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from cuda.check.trials.trial import Pace, moved_bytes
from cuda.devices.device import DeviceSettings
from cuda.models.kv import KvLayout, PoolRequest, choose_num_pages
from cuda.models.layout import EMBEDDING, held_ranges
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec, UnsupportedModel

ROWS = 8
"""Of the steps that are compared: a few users at a time."""
GIB = 1 << 30
_LOGIT_BYTES = 4


@dataclass(frozen=True)
class Wanted:
    """What a group of any size is to hold."""

    spec: ModelSpec
    value_bytes: float
    """Of a weight."""
    item_bytes: int
    """Of a value in the KV pool, and of an activation that ranks exchange."""
    device: DeviceSettings
    """Pages of the KV pool, and how many, if somebody said."""
    max_running: int
    max_model_len: int
    """Tokens of one request: there must be room for it, if nobody said how large the pool is."""


@dataclass(frozen=True)
class Memory:
    """Where weights and KV pools go."""

    free_bytes: int
    """Of each device; or of the host, whose memory all devices share."""
    is_shared: bool
    pool_share: float
    """Of free memory, for a pool that nobody sized: shared memory is measured before weights are there, else after."""
    reserve_bytes: int
    """Of each device, for neither."""


@dataclass(frozen=True)
class Room:
    """What groups of one size find."""

    weights_bytes: int
    """Of the fullest rank."""
    kv_tokens: int
    """Of each group's pool."""
    lack: str
    """What is missing; "" if all fits."""


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
        candidate = Candidate(size, num_groups, "" if room is None else room.lack, room)
        found.append(_timed(candidate, wanted, shards, by_size[size]) if size in by_size else candidate)
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


def _timed(candidate: Candidate, wanted: Wanted, shards: Sequence[Shard], pace: Pace) -> Candidate:
    return replace(
        candidate,
        hindrance=candidate.hindrance or pace.hindrance,
        compute_s=fullest(wanted.spec, shards) * pace.value_s,
        exchange_s=None if pace.hindrance else exchange_time(candidate.size, wanted, pace),
    )


def held_values(spec: ModelSpec, shard: Shard) -> int:
    """Weights that a rank holds."""
    return sum(_sizes(spec, shard).values())


def read_values(spec: ModelSpec, shard: Shard) -> int:
    """Weights that a rank reads in a step: of an embedding that is not also the output matrix, next to none."""
    sizes = _sizes(spec, shard)
    return sum(sizes.values()) - (0 if spec.tie_word_embeddings else sizes[EMBEDDING])


def find_room(shards: Sequence[Shard], num_groups: int, wanted: Wanted, memory: Memory) -> Room:
    """Lay out `num_groups` groups of these ranks each."""
    weights = [round(held_values(wanted.spec, shard) * wanted.value_bytes) for shard in shards]
    layouts = [KvLayout.of(shard.spec(wanted.spec), wanted.device.page_size, wanted.item_bytes) for shard in shards]
    page_bytes = [layout.page_bytes for layout in layouts]
    own = [memory.free_bytes - held - memory.reserve_bytes for held in weights]
    free = [memory.free_bytes // len(shards)] * len(shards) if memory.is_shared else own
    pages = min(
        _num_pages(layout, wanted, layout.page_bytes / sum(page_bytes), rank_free, memory.pool_share)
        for layout, rank_free in zip(layouts, free, strict=True)
    )
    is_given = wanted.device.num_pages is not None or wanted.device.kv_memory is not None
    needed_pages = pages if is_given else -(-wanted.max_model_len // wanted.device.page_size)
    if memory.is_shared:
        group_bytes = sum(weights) + needed_pages * sum(page_bytes) + len(shards) * memory.reserve_bytes
        needed = float(num_groups * group_bytes)
    else:
        share = 1 if is_given else memory.pool_share
        pools = [needed_pages * each / share for each in page_bytes]
        needed = max(map(sum, zip(weights, pools, strict=True))) + memory.reserve_bytes
    lack = "" if pages else "its KV pool has no room for a page"
    if needed > memory.free_bytes:
        lack = f"needs {needed / GIB:.1f} of {memory.free_bytes / GIB:.1f} GiB"
    return Room(max(weights), pages * wanted.device.page_size, lack)


def _sizes(spec: ModelSpec, shard: Shard) -> dict[str, int]:
    return {name: prod(map(len, ranges)) for name, ranges in held_ranges(spec, shard).items()}


def _num_pages(layout: KvLayout, wanted: Wanted, share_of_given: float, free_bytes: int, pool_share: float) -> int:
    """As the device will choose; 0 where it will fail."""
    given = None if wanted.device.kv_memory is None else int(wanted.device.kv_memory * share_of_given)
    request = PoolRequest(wanted.device.num_pages, given, wanted.max_running * wanted.max_model_len)
    try:
        return choose_num_pages(layout, request, free_bytes, pool_share)
    except ValueError:
        return 0
