"""What groups find in memory, by hand."""

from dataclasses import replace

import pytest

from actors.node.group_memory import Memory, Wanted, find_room, held_values, read_values
from cuda.models.config import parse_spec
from cuda.models.shard import split
from cuda.models.spec import ModelSpec

GIB = 1 << 30
LAYERS, HIDDEN, FEATURES, HEADS, KV_HEADS, VOCAB = 2, 96, 128, 6, 3, 256
HEAD_DIM = HIDDEN // HEADS
PAGE_SIZE = 16
HEAD_PAGE_BYTES = LAYERS * 2 * PAGE_SIZE * HEAD_DIM * 4
"""Of a page with one KV head."""


def spec(*, tied: bool = True) -> ModelSpec:
    sizes = {
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FEATURES,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "tie_word_embeddings": tied,
    }
    return parse_spec({"model_type": "llama", **sizes}, (2,))


def values(heads: int, kv_heads: int, features: int, vocabulary: int, tables: int = 1) -> int:
    """Of a rank that holds so many of each; norms are whole on every rank."""
    attention = HIDDEN * HEAD_DIM * (2 * heads + 2 * kv_heads)
    return LAYERS * (attention + 3 * HIDDEN * features + 2 * HIDDEN) + HIDDEN + tables * HIDDEN * vocabulary


def wanted(*, num_pages: int | None = None, kv_memory: int | None = None, max_model_len: int = 64) -> Wanted:
    return Wanted(
        spec=spec(),
        value_bytes=4,
        item_bytes=4,
        page_size=PAGE_SIZE,
        num_pages=num_pages,
        kv_memory=kv_memory,
        max_running=8,
        max_model_len=max_model_len,
    )


WHOLE = values(6, 3, 128, 256)
FULLER, EMPTIER = values(4, 2, 64, 128), values(2, 1, 64, 128)


def test_ranks_hold_what_their_shard_says() -> None:
    assert [held_values(spec(), shard) for shard in split(spec(), 1)] == [WHOLE]
    assert [held_values(spec(), shard) for shard in split(spec(), 2)] == [FULLER, EMPTIER]


def test_an_embedding_of_its_own_is_held_and_hardly_read() -> None:
    (shard,) = split(spec(tied=False), 1)
    assert held_values(spec(tied=False), shard) == values(6, 3, 128, 256, tables=2)
    assert read_values(spec(tied=False), shard) == WHOLE
    assert read_values(spec(), shard) == WHOLE


def own(free_bytes: int, reserve_bytes: int = 0) -> Memory:
    return Memory(free_bytes, is_shared=False, pool_share=0.5, reserve_bytes=reserve_bytes)


@pytest.mark.parametrize(("size", "held", "kv_heads"), [(1, WHOLE, 3), (2, FULLER, 2)])
def test_devices_of_their_own_memory_need_weights_reserve_and_a_pool_of_one_request(
    size: int, held: int, kv_heads: int
) -> None:
    request_bytes = 4 * kv_heads * HEAD_PAGE_BYTES  # 64 tokens, and half of what is free is for the pool
    enough = 4 * held + 1000 + 2 * request_bytes
    shards = split(spec(), size)
    room = find_room(shards, 1, wanted(), own(enough, 1000))
    assert (room.weights_bytes, room.kv_tokens, room.lack) == (4 * held, 64, "")
    assert find_room(shards, 1, wanted(), own(enough - 1, 1000)).lack == "needs 0.0 of 0.0 GiB"


def test_the_rank_with_fewest_pages_says_how_large_the_pool_is() -> None:
    free = 4 * FULLER + 2 * 10 * 2 * HEAD_PAGE_BYTES  # 10 pages with two KV heads; the other rank has room for more
    assert find_room(split(spec(), 2), 1, wanted(), own(free)).kv_tokens == 10 * PAGE_SIZE


def test_a_pool_is_not_larger_than_all_requests_together() -> None:
    assert find_room(split(spec(), 1), 1, wanted(), own(GIB)).kv_tokens == 8 * 64


@pytest.mark.parametrize("num_groups", [1, 3])
def test_groups_that_share_memory_need_it_for_all(num_groups: int) -> None:
    ranks_bytes = 4 * (FULLER + EMPTIER) + 4 * 3 * HEAD_PAGE_BYTES + 2 * 1000
    memory = Memory(num_groups * ranks_bytes, is_shared=True, pool_share=0.25, reserve_bytes=1000)
    assert not find_room(split(spec(), 2), num_groups, wanted(), memory).lack
    assert find_room(split(spec(), 2), num_groups, wanted(), replace(memory, free_bytes=memory.free_bytes - 1)).lack


def test_a_pool_without_a_page_is_no_pool() -> None:
    page_bytes = 3 * HEAD_PAGE_BYTES
    shards, memory = split(spec(), 2), own(1 << 40)
    assert find_room(shards, 1, wanted(kv_memory=page_bytes - 1), memory).lack == "its KV pool has no room for a page"
    assert not find_room(shards, 1, wanted(kv_memory=page_bytes), memory).lack


def test_a_pool_that_was_asked_for_must_fit_and_needs_no_room_for_a_whole_request() -> None:
    small = wanted(num_pages=1, max_model_len=64)
    exact = 4 * WHOLE + 3 * HEAD_PAGE_BYTES
    room = find_room(split(spec(), 1), 1, small, own(exact))
    assert (room.kv_tokens, room.lack) == (PAGE_SIZE, "")
    assert find_room(split(spec(), 1), 1, small, own(exact - 1)).lack


def test_a_pool_in_bytes_is_the_groups_and_shared_out_by_kv_heads() -> None:
    given = wanted(kv_memory=30 * HEAD_PAGE_BYTES)
    assert find_room(split(spec(), 1), 1, given, own(GIB)).kv_tokens == 10 * PAGE_SIZE
    assert find_room(split(spec(), 2), 1, given, own(GIB)).kv_tokens == 10 * PAGE_SIZE


def test_where_weights_leave_nothing_there_are_no_tokens() -> None:
    room = find_room(split(spec(), 1), 1, wanted(), own(1000))
    assert room.kv_tokens == 0
    assert room.lack
