"""What groups of each size need of the devices' memory, and how large their KV pools are. Arithmetic only.

Sizes of weights are upper bounds: a CPU device packs what it can without loss. Read `actors.node.prediction` next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cuda.models.kv import KvLayout, PoolRequest, choose_num_pages
from cuda.models.layout import EMBEDDING, held_ranges
from cuda.models.shard import Shard
from cuda.models.spec import ModelSpec

GIB = 1 << 30


@dataclass(frozen=True)
class Wanted:
    """What a group of any size is to hold."""

    spec: ModelSpec
    value_bytes: float
    """Of a weight."""
    item_bytes: int
    """Of a value in the KV pool, and of an activation that ranks exchange."""
    page_size: int
    num_pages: int | None
    """Of the KV pool, if somebody said."""
    kv_memory: int | None
    """Bytes of the KV pool, if somebody said."""
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
    layouts = [KvLayout.of(shard.spec(wanted.spec), wanted.page_size, wanted.item_bytes) for shard in shards]
    page_bytes = [layout.page_bytes for layout in layouts]
    own = [memory.free_bytes - held - memory.reserve_bytes for held in weights]
    free = [memory.free_bytes // len(shards)] * len(shards) if memory.is_shared else own
    pages = min(
        _num_pages(layout, wanted, layout.page_bytes / sum(page_bytes), rank_free, memory.pool_share)
        for layout, rank_free in zip(layouts, free, strict=True)
    )
    is_given = wanted.num_pages is not None or wanted.kv_memory is not None
    needed_pages = pages if is_given else -(-wanted.max_model_len // wanted.page_size)
    if memory.is_shared:
        group_bytes = sum(weights) + needed_pages * sum(page_bytes) + len(shards) * memory.reserve_bytes
        needed = float(num_groups * group_bytes)
    else:
        share = 1 if is_given else memory.pool_share
        needed = max(
            held + memory.reserve_bytes + needed_pages * each / share
            for held, each in zip(weights, page_bytes, strict=True)
        )
    lack = "" if pages else "its KV pool has no room for a page"
    if needed > memory.free_bytes:
        lack = f"needs {needed / GIB:.1f} of {memory.free_bytes / GIB:.1f} GiB"
    return Room(max(weights), pages * wanted.page_size, lack)


def _sizes(spec: ModelSpec, shard: Shard) -> dict[str, int]:
    return {name: prod(map(len, ranges)) for name, ranges in held_ranges(spec, shard).items()}


def _num_pages(layout: KvLayout, wanted: Wanted, share_of_given: float, free_bytes: int, pool_share: float) -> int:
    """As the device will choose; 0 where it will fail."""
    given = None if wanted.kv_memory is None else int(wanted.kv_memory * share_of_given)
    request = PoolRequest(wanted.num_pages, given, wanted.max_running * wanted.max_model_len)
    try:
        return choose_num_pages(layout, request, free_bytes, pool_share)
    except ValueError:
        return 0
