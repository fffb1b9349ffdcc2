"""Sizes of a KV pool."""

import pytest

from cuda.models.kv import KvLayout, PoolRequest, available_memory, choose_num_pages

LAYOUT = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16, item_bytes=4)


def test_a_page_holds_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.page_bytes == 30 * 2 * 3 * 16 * 64 * 4


def test_pages_come_first_then_bytes_then_a_quarter_of_free_memory() -> None:
    page = LAYOUT.page_bytes
    assert choose_num_pages(LAYOUT, PoolRequest(7, page, 1 << 20), 1 << 40) == 7
    assert choose_num_pages(LAYOUT, PoolRequest(None, 5 * page + 1, 1 << 20), 1 << 40) == 5
    assert choose_num_pages(LAYOUT, PoolRequest(None, None, 1 << 20), 40 * page) == 10


def test_no_more_pages_are_taken_than_all_rows_can_fill() -> None:
    assert choose_num_pages(LAYOUT, PoolRequest(None, None, 100), 1 << 50) == 7


def test_a_pool_without_room_for_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="a KV page needs 737280 bytes; the pool was given 250"):
        choose_num_pages(LAYOUT, PoolRequest(None, None, 1000), 1000)


def test_available_memory_is_read_from_the_system() -> None:
    assert 1 << 20 < available_memory() < 1 << 50
