"""Shards: every head, feature and token is held, evenly, and what cannot be shared out is refused."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda.models.config import parse_spec
from cuda.models.shard import describe, split
from cuda.models.spec import UnsupportedModel

SMOLLM = parse_spec(
    {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    (2,),
)


@pytest.mark.parametrize(
    ("world_size", "heads", "kv_heads"),
    [
        (1, [9], [3]),
        (2, [6, 3], [2, 1]),
        (3, [3, 3, 3], [1, 1, 1]),
        (4, [3, 3, 2, 1], [1, 1, 1, 1]),
        (8, [2, 1, 1, 1, 1, 1, 1, 1], [1] * 8),
        (9, [1] * 9, [1] * 9),
    ],
)
def test_nine_query_heads_over_three_kv_heads_go_on_any_number_of_ranks(
    world_size: int, heads: list[int], kv_heads: list[int]
) -> None:
    shards = split(SMOLLM, world_size)
    assert [len(shard.heads) for shard in shards] == heads
    assert [len(shard.kv_heads) for shard in shards] == kv_heads
    assert [shard.rank for shard in shards] == list(range(world_size))


def test_one_kv_head_is_on_every_rank() -> None:
    shards = split(replace(SMOLLM, num_heads=4, num_kv_heads=1), 3)
    assert [(list(shard.heads), list(shard.kv_heads)) for shard in shards] == [([0, 1], [0]), ([2], [0]), ([3], [0])]


@given(
    kv_heads=st.integers(1, 12),
    group=st.integers(1, 8),
    features=st.integers(1, 3000),
    tokens=st.integers(1, 5000),
    world_size=st.integers(1, 16),
)
def test_every_head_feature_and_token_is_held_where_a_rank_expects_it(
    kv_heads: int, group: int, features: int, tokens: int, world_size: int
) -> None:
    spec = replace(
        SMOLLM, num_kv_heads=kv_heads, num_heads=kv_heads * group, intermediate_size=features, vocab_size=tokens
    )
    try:
        shards = split(spec, world_size)
    except UnsupportedModel:
        assert world_size > min(kv_heads * group, features, -(-tokens // 32))
        return
    assert [head for shard in shards for head in shard.heads] == list(range(kv_heads * group))
    assert [feature for shard in shards for feature in shard.features] == list(range(features))
    assert [token for shard in shards for token in shard.vocabulary] == list(range(tokens))
    assert {head for shard in shards for head in shard.kv_heads} == set(range(kv_heads))
    for shard in shards:
        assert min(len(shard.heads), len(shard.features), len(shard.vocabulary)) > 0
        shares = Counter(head // group for head in shard.heads)
        assert list(shares) == list(shard.kv_heads)
        assert len(set(shares.values())) == 1
        assert shard.vocabulary.start % 32 == 0


def test_cuts_keep_kernels_aligned() -> None:
    for world_size in range(2, 9):
        for shard in split(SMOLLM, world_size):
            assert shard.features.start % 32 == 0
            assert shard.vocabulary.start % 64 == 0


def test_a_ranks_own_spec_differs_in_heads_and_features_only() -> None:
    own = split(SMOLLM, 2)[1].spec(SMOLLM)
    assert own == replace(SMOLLM, num_heads=3, num_kv_heads=1, intermediate_size=768)
    assert split(SMOLLM, 1)[0].spec(SMOLLM) == SMOLLM


def test_too_many_ranks_are_refused_with_what_there_is_too_little_of() -> None:
    with pytest.raises(UnsupportedModel, match="the model has 9 query heads: 10 ranks cannot each hold one"):
        split(SMOLLM, 10)
    with pytest.raises(UnsupportedModel, match="1 features: 2 ranks"):
        split(replace(SMOLLM, intermediate_size=1), 2)
    with pytest.raises(UnsupportedModel, match="32 tokens in panels of 32: 2 ranks"):
        split(replace(SMOLLM, vocab_size=32), 2)


def test_the_summary_says_what_each_rank_holds_and_the_imbalance() -> None:
    assert describe(split(SMOLLM, 2)) == (
        "rank 0: query heads 0-5, KV heads 0-1, features 0-767, tokens 0-24575",
        "rank 1: query heads 6-8, KV heads 2, features 768-1535, tokens 24576-49151",
        "the fullest rank against an even share: attention 1.33x, KV cache 1.33x, feed-forward 1.00x, vocabulary 1.00x",
    )
    assert "KV cache 1.33x" in describe(split(SMOLLM, 4))[-1]
