import gc

import pytest

from actors.scheduler.pages import Node, PagePool, PrefixCache


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


SIZE = 2


def make(num_pages: int = 8) -> tuple[PagePool, PrefixCache]:
    pool = PagePool(num_pages)
    return pool, PrefixCache(pool, SIZE)


def insert(cache: PrefixCache, tokens: list[int], salt: str = "") -> tuple[Node, list[int]]:
    """Compute and publish all whole pages of `tokens` for one more request."""
    node, depth = cache.match([], salt)
    pages = []
    for index in range(depth, len(tokens) // SIZE):
        page = cache.allocate()
        child = cache.insert(node, tuple(tokens[index * SIZE : (index + 1) * SIZE]), page)
        assert child is not None
        node = child
        pages.append(page)
    return node, pages


def release(pool: PagePool, pages: list[int]) -> None:
    for page in reversed(pages):
        pool.release(page)


def test_a_match_ends_at_the_first_page_that_differs() -> None:
    _, cache = make()
    _, pages = insert(cache, [1, 2, 3, 4, 5, 6])
    node, depth = cache.match([1, 2, 3, 4, 9, 9, 9], "")
    assert depth == 2
    assert cache.chain(node) == pages[:2]


def test_the_last_token_is_never_matched_since_its_logits_are_wanted() -> None:
    _, cache = make()
    insert(cache, [1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4], "")[1] == 1
    assert cache.match([1, 2, 3, 4, 5], "")[1] == 2


def test_salts_never_meet() -> None:
    _, cache = make()
    insert(cache, [1, 2, 3, 4], salt="a")
    assert cache.match([1, 2, 3, 4, 5], "b")[1] == 0
    assert cache.match([1, 2, 3, 4, 5], "a")[1] == 2


def test_equal_hashes_do_not_mix_pages() -> None:
    _, cache = make()
    assert hash((-1,)) == hash((-2,))  # CPython: -1 is no hash
    insert(cache, [-1, -1])
    assert cache.match([-2, -2, 0], "")[1] == 0
    assert cache.match([-1, -1, 0], "")[1] == 1


def test_a_match_goes_on_from_where_an_earlier_one_ended() -> None:
    _, cache = make()
    node, _ = insert(cache, [1, 2])
    earlier = cache.match([1, 2, 3, 4, 5], "")
    child = cache.insert(node, (3, 4), cache.allocate())
    assert earlier == (node, 1)
    assert cache.match([1, 2, 3, 4, 5], "", earlier) == (child, 2)


def test_the_end_of_a_chain_is_given_up_before_its_beginning() -> None:
    pool, cache = make(3)
    _, pages = insert(cache, [1, 2, 3, 4, 5, 6])
    release(pool, pages)
    assert cache.allocate() == pages[2]
    assert cache.match([1, 2, 3, 4, 5, 6, 7], "")[1] == 2


def test_the_first_page_with_a_meaning_is_kept() -> None:
    _, cache = make()
    first, _ = insert(cache, [1, 2])
    twin, _ = insert(cache, [1, 2])
    assert twin is first


def test_a_page_takes_its_descendants_out_with_it() -> None:
    pool, cache = make(4)
    _, first = insert(cache, [1, 2])
    twin = cache.allocate()
    parent = cache.match([1, 2, 0], "")[0]
    child_page = cache.allocate()
    child = cache.insert(parent, (3, 4), child_page)
    assert child is not None
    release(pool, first)  # its holder is gone; who holds the child has the twin
    cache.evict()
    assert not child.alive
    assert cache.insert(child, (5, 6), twin) is None
    assert cache.match([1, 2, 3, 4, 5], "")[1] == 0
    pool.release(child_page)
    pool.release(twin)
    assert pool.num_free == 4


def test_an_earlier_match_whose_node_is_gone_begins_anew() -> None:
    pool, cache = make(1)
    node, pages = insert(cache, [1, 2])
    release(pool, pages)
    cache.evict()
    assert cache.match([1, 2, 3], "", (node, 1))[1] == 0


def test_switched_off_it_keeps_nothing() -> None:
    pool = PagePool(2)
    cache = PrefixCache(pool, SIZE, enabled=False)
    page = cache.allocate()
    assert cache.insert(cache.match([], "")[0], (1, 2), page) is None
    pool.release(page)
    assert pool.num_free == 2


def test_salts_that_nobody_uses_are_forgotten() -> None:
    pool, cache = make()
    for number in range(100):
        _, pages = insert(cache, [1, 2], salt=str(number))
        release(pool, pages)
    gc.collect()
    assert len(cache._roots) <= pool.num_pages


def test_the_check_finds_a_page_that_lost_its_place() -> None:
    _, cache = make()
    node, _ = insert(cache, [1, 2, 3, 4])
    cache.check()
    assert node.parent is not None
    del node.parent.children[node.key]
    with pytest.raises(AssertionError, match="cannot be found"):
        cache.check()
