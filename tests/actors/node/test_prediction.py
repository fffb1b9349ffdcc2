"""What groups find in memory, how long their steps take by prediction, and the choice: all by hand."""

from dataclasses import replace

import pytest

from actors.node.prediction import (
    ROWS,
    Candidate,
    Memory,
    Room,
    Wanted,
    candidates,
    choose,
    exchange_time,
    find_room,
    fullest,
    held_values,
    read_values,
    shards_by_size,
    sizes_of,
)
from cuda.check.trials.trial import Pace
from cuda.devices.device import DeviceSettings
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
        device=DeviceSettings(page_size=PAGE_SIZE, num_pages=num_pages, kv_memory=kv_memory),
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


ROOM = Room(100 << 20, 4096, "")
PLENTY = Memory(GIB, is_shared=True, pool_share=0.25, reserve_bytes=0)


def timed(size: int, step_ms: float, hindrance: str = "") -> Candidate:
    return Candidate(size, 8 // size, hindrance, ROOM, step_ms / 1e3, 0.0)


@pytest.mark.parametrize(("num_devices", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (8, (1, 2, 4, 8))])
def test_sizes_leave_no_device_over(num_devices: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of(num_devices) == sizes


def test_a_step_takes_as_long_as_the_fullest_rank_computes() -> None:
    assert fullest(spec(), split(spec(), 2)) == FULLER
    one, two = candidates(2, wanted(), PLENTY, [Pace(1, 1e-9), Pace(2, 2e-9, 0.0)])
    assert (one.num_groups, two.num_groups) == (2, 1)
    assert one.compute_s == pytest.approx(WHOLE * 1e-9)
    assert two.compute_s == pytest.approx(FULLER * 2e-9)


def test_exchanges_cost_a_latency_each_and_their_bytes() -> None:
    pace = Pace(4, 1e-9, latency_s=1e-5, link_bytes_per_s=1e9)
    sums = 2 * LAYERS + 1
    moved = sums * 2 * 3 / 4 * (ROWS * HIDDEN * 4) + 3 / 4 * ROWS * VOCAB * 4
    assert exchange_time(4, wanted(), pace) == pytest.approx((sums + 1) * 1e-5 + moved / 1e9)
    assert exchange_time(1, wanted(), pace) == 0


def test_halves_of_values_move_half_the_bytes_of_a_sum() -> None:
    pace = Pace(2, 1e-9, link_bytes_per_s=1e9)
    logits = ROWS * VOCAB * 4 / 2 / 1e9
    whole, half = (exchange_time(2, replace(wanted(), item_bytes=item), pace) - logits for item in (4, 2))
    assert half == pytest.approx(whole / 2)


def test_the_shortest_step_is_chosen() -> None:
    assert choose([timed(1, 10), timed(2, 6), timed(4, 5), timed(8, 5.5)]).size == 4
    assert choose([timed(1, 10), timed(2, 10)]).size == 1


def test_the_reason_names_all_that_could_be() -> None:
    reason = choose([timed(1, 10), timed(2, 6), timed(4, 5, "no")]).reason
    assert reason == "its step of 8 rows is predicted to take 6.00 ms, 10.00 ms with tp 1"


def test_what_does_not_fit_is_not_chosen() -> None:
    choice = choose([timed(1, 1, "needs 15.0 of 10.0 GiB"), timed(2, 9), timed(4, 12)])
    assert choice.size == 2
    assert "tp 1" not in choice.reason
    assert choose([timed(1, 1, "needs 15.0 of 10.0 GiB"), timed(2, 9)]).reason == "the only size that can be"


def test_without_times_the_smallest_that_fits_is_chosen() -> None:
    tried = [Candidate(1, 4, "needs 15.0 of 10.0 GiB", ROOM), Candidate(2, 2, "", ROOM), Candidate(4, 1, "", ROOM)]
    assert choose(tried).size == 2


def test_when_nothing_fits_the_largest_that_can_be_shared_out_so_is_tried() -> None:
    tried = [timed(1, 1, "needs 15"), timed(2, 1, "needs 8"), Candidate(4, 1, "the model has 2 query heads")]
    choice = choose(tried)
    assert choice.size == 2
    assert "needs 8" in choice.reason


def test_a_size_at_which_a_rank_holds_nothing_is_hindered() -> None:
    one, seven = candidates(7, wanted(), PLENTY)
    assert not one.hindrance
    assert "6 query heads: 7 ranks" in seven.hindrance
    assert [type(shards) for shards in shards_by_size(spec(), 7).values()] == [tuple, str]


def test_a_link_that_cannot_be_used_hinders_a_size() -> None:
    one, two = candidates(2, wanted(), PLENTY, [Pace(1, 1e-9), Pace(2, 1e-9, hindrance="GPU 0 cannot reach GPU 1")])
    assert (one.hindrance, two.hindrance) == ("", "GPU 0 cannot reach GPU 1")
    assert two.step_s is None
