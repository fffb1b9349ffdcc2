"""Which part of a decoder each rank of a tensor-parallel group holds.

Attention is cut between heads, the feed-forward layer between features, embedding and output matrix between tokens;
every part is contiguous and in rank order. Numbers only. Read `cuda.models.checkpoint` for how a part is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from cuda.models.spec import ModelSpec, UnsupportedModel

_FEATURES: Final = 32
_TOKENS: Final = 64
_FEWEST_TOKENS: Final = 32
"""A rank's logits are whole panels of 32 columns side by side with its neighbours'."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds; ranges are of the whole model's heads, features and tokens."""

    rank: int
    world_size: int
    heads: range
    """Query heads: equally many for each of `kv_heads`."""
    kv_heads: range
    """Another rank holds the same KV head if there are more ranks than KV heads."""
    features: range
    """Of F."""
    vocabulary: range
    """Tokens whose embeddings and logits this rank has."""

    def spec(self, spec: ModelSpec) -> ModelSpec:
        """The decoder that this rank computes: fewer heads and features, and the whole vocabulary's logits."""
        return replace(
            spec,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.features),
        )


def split(spec: ModelSpec, world_size: int) -> tuple[Shard, ...]:
    """The shards of `world_size` ranks, as even as can be.

    UnsupportedModel if a rank would hold no query head, no feature or no token.
    """
    attention = _split_attention(spec, world_size)
    features = _split_features(spec, world_size)
    vocabulary = _split_vocabulary(spec, world_size)
    return tuple(
        Shard(rank, world_size, heads, kv_heads, features[rank], vocabulary[rank])
        for rank, (heads, kv_heads) in enumerate(attention)
    )


def describe(shards: Sequence[Shard]) -> tuple[str, ...]:
    """A line for each rank, and one that says by how much the fullest rank exceeds an even share."""
    lines = [
        f"rank {shard.rank}: query heads {_named(shard.heads)}, KV heads {_named(shard.kv_heads)}, "
        f"features {_named(shard.features)}, tokens {_named(shard.vocabulary)}"
        for shard in shards
    ]
    excess = (
        f"attention {_excess([len(shard.heads) for shard in shards])}",
        f"KV cache {_excess([len(shard.kv_heads) for shard in shards], len(_united(shards)))}",
        f"feed-forward {_excess([len(shard.features) for shard in shards])}",
        f"vocabulary {_excess([len(shard.vocabulary) for shard in shards])}",
    )
    return (*lines, f"the fullest rank against an even share: {', '.join(excess)}")


def _split_attention(spec: ModelSpec, world_size: int) -> list[tuple[range, range]]:
    """(query heads, KV heads) of each rank."""
    group = spec.num_heads // spec.num_kv_heads
    if world_size <= spec.num_kv_heads:
        parts = _even(spec.num_kv_heads, world_size)
        return [(range(part.start * group, part.stop * group), part) for part in parts]
    if world_size > spec.num_heads:
        raise _refused(spec.num_heads, "query heads", world_size)
    ranks = [len(part) for part in _even(world_size, spec.num_kv_heads)][::-1]  # a head's; the last have one more
    return [
        (range(kv_head * group + part.start, kv_head * group + part.stop), range(kv_head, kv_head + 1))
        for kv_head, count in enumerate(ranks)
        for part in _even(group, count)
    ]


def _split_features(spec: ModelSpec, world_size: int) -> list[range]:
    unit = _FEATURES
    while unit > 1 and -(-spec.intermediate_size // unit) < world_size:
        unit //= 2
    if spec.intermediate_size < world_size:
        raise _refused(spec.intermediate_size, "features", world_size)
    return _even_units(spec.intermediate_size, unit, world_size)


def _split_vocabulary(spec: ModelSpec, world_size: int) -> list[range]:
    unit = _TOKENS if -(-spec.vocab_size // _TOKENS) >= world_size else _FEWEST_TOKENS
    if -(-spec.vocab_size // unit) < world_size:
        raise _refused(spec.vocab_size, "tokens in panels of 32", world_size)
    return _even_units(spec.vocab_size, unit, world_size)


def _even(count: int, parts: int) -> list[range]:
    """`range(count)` in contiguous parts; the first ones hold one more."""
    least, more = divmod(count, parts)
    ends = [part * least + min(part, more) for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _even_units(count: int, unit: int, parts: int) -> list[range]:
    """`range(count)` in contiguous parts that begin at multiples of `unit`."""
    units = _even(-(-count // unit), parts)
    return [range(part.start * unit, min(count, part.stop * unit)) for part in units]


def _refused(count: int, things: str, world_size: int) -> UnsupportedModel:
    return UnsupportedModel(f"the model has {count} {things}: {world_size} ranks cannot each hold one")


def _named(part: range) -> str:
    return str(part.start) if len(part) == 1 else f"{part.start}-{part.stop - 1}"


def _united(shards: Sequence[Shard]) -> set[int]:
    return {kv_head for shard in shards for kv_head in shard.kv_heads}


def _excess(held: Sequence[int], total: int | None = None) -> str:
    return f"{max(held) * len(held) / (sum(held) if total is None else total):.2f}x"
