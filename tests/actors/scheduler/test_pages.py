import pytest

from actors.scheduler.pages import PagePool


def test_all_pages_are_free_at_first() -> None:
    pool = PagePool(4)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (4, 0, 0)
    assert sorted(pool.allocate() for _ in range(4)) == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        pool.allocate()


def test_a_page_is_held_until_every_table_has_released_it() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.hold(page)
    pool.release(page)
    assert pool.num_held == 1
    pool.release(page)
    assert (pool.num_free, pool.num_held) == (2, 0)


def test_a_kept_page_becomes_cached_and_the_first_released_is_the_oldest() -> None:
    pool = PagePool(3)
    first, second = pool.allocate(), pool.allocate()
    for page in (first, second):
        pool.keep(page)
    pool.release(second)
    pool.release(first)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 2, 3)
    assert pool.oldest_cached() == second


def test_holding_a_cached_page_makes_it_the_newest() -> None:
    pool = PagePool(2)
    first, second = pool.allocate(), pool.allocate()
    for page in (first, second):
        pool.keep(page)
        pool.release(page)
    pool.hold(first)
    assert pool.num_held == 1
    pool.release(first)
    assert pool.oldest_cached() == second


def test_a_forgotten_page_is_free_at_once_or_when_released() -> None:
    pool = PagePool(2)
    cached, held = pool.allocate(), pool.allocate()
    for page in (cached, held):
        pool.keep(page)
    pool.release(cached)
    pool.forget(cached)
    pool.forget(held)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (1, 0, 1)
    pool.release(held)
    assert pool.num_free == 2


def test_the_check_names_a_page_whose_count_is_wrong() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.check({page: 1})
    with pytest.raises(AssertionError, match="differs"):
        pool.check({page: 2})
    with pytest.raises(AssertionError, match="!= 2"):
        pool.check({})
