from tests.actors.scheduler.rig import Rig, make_config

PROMPT = [100 + index for index in range(12)]


def test_a_cached_prefix_is_not_computed_again() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(PROMPT, max_tokens=1)
    rig.run()
    rig.submit([*PROMPT, 7, 8, 9], max_tokens=1)
    plan = rig.plan()
    assert plan is not None
    assert [(row.start, row.count) for row in plan.rows] == [(12, 3)]
    rig.run()
    assert rig.ends[2].usage.cached_tokens == 12  # type: ignore[union-attr] # it has finished
    assert rig.tokens[2] == rig.expected(2)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    rig = Rig(make_config(overlap=False))
    for _ in range(2):
        number = rig.submit(PROMPT, max_tokens=3)
        rig.run()
        assert rig.tokens[number] == rig.expected(number)
    assert rig.ends[2].usage.cached_tokens == 8  # type: ignore[union-attr] # the last page has the last token


def test_output_is_matched_by_the_next_turn_of_a_conversation() -> None:
    rig = Rig(make_config())
    rig.submit(PROMPT, max_tokens=9, ignore_eos=True)
    rig.run()
    rig.submit([*PROMPT, *rig.tokens[1], 5], max_tokens=1)
    rig.run()
    assert rig.ends[2].usage.cached_tokens == 20  # type: ignore[union-attr] # 12 + 9 tokens, the last was never an input
    assert rig.tokens[2] == rig.expected(2)


def test_another_salt_hits_nothing() -> None:
    rig = Rig(make_config())
    for salt in ("a", "b"):
        rig.submit(PROMPT, max_tokens=1, cache_salt=salt)
        rig.run()
    assert rig.ends[2].usage.cached_tokens == 0  # type: ignore[union-attr] # it has finished


def test_of_requests_that_share_an_uncached_prefix_one_goes_first_and_the_rest_hit_its_pages() -> None:
    rig = Rig(make_config())
    for number in range(4):
        rig.submit([*PROMPT, number], max_tokens=2, ignore_eos=True)
    first = rig.plan()
    assert first is not None
    assert [row.count for row in first.rows] == [13]
    second = rig.plan()
    assert second is not None
    assert sorted(row.count for row in second.rows) == [1, 1, 1, 1]  # one decode, three prompts of which 12 hit
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in range(1, 5)}
    assert rig.scheduler.stats.cache_hits == 3 * 12


def test_who_is_held_back_goes_on_when_the_leader_is_cancelled() -> None:
    rig = Rig(make_config(step_tokens=9))
    leader = rig.submit([*PROMPT, 1], max_tokens=2)
    follower = rig.submit([*PROMPT, 2], max_tokens=2)
    rig.plan()
    assert rig.group.num_waiting == 1
    rig.scheduler.cancel(leader, rig.now)
    rig.run()
    assert rig.tokens[follower] == rig.expected(follower)
    rig.check_idle()


def test_a_held_back_request_can_be_cancelled() -> None:
    rig = Rig(make_config(step_tokens=9))
    rig.submit([*PROMPT, 1], max_tokens=2)
    follower = rig.submit([*PROMPT, 2], max_tokens=2)
    rig.plan()
    rig.scheduler.cancel(follower, rig.now)
    assert rig.group.num_waiting == 0
    rig.run()
    rig.check_idle()


def test_who_cannot_get_all_its_pages_changes_nothing() -> None:
    rig = Rig(make_config(), num_pages=6, page_size=4)
    rig.submit(PROMPT, max_tokens=8, ignore_eos=True)
    rig.step()
    rig.step()  # its fourth page is open now
    rig.submit([*PROMPT[:4], *range(50, 60)], max_tokens=4, ignore_eos=True)
    before = (rig.group.pool.num_free, rig.group.pool.num_cached, rig.group.pool.num_held)
    rig.step()
    assert rig.group.num_waiting == 1
    assert (rig.group.pool.num_free, rig.group.pool.num_cached, rig.group.pool.num_held) == before
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}


def test_without_prefix_cache_nothing_is_matched_or_kept() -> None:
    rig = Rig(make_config(prefix_cache=False))
    for _ in range(2):
        rig.submit(PROMPT, max_tokens=2)
    rig.run()
    assert rig.scheduler.stats.cache_hits == 0
    assert rig.group.pool.num_free == rig.group.pool.num_pages
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}


def test_each_row_that_runs_keeps_one_page_in_reserve() -> None:
    rig = Rig(make_config(overlap=False), num_pages=6, page_size=4)
    rig.submit([1, 2, 3, 4], max_tokens=4, ignore_eos=True)
    rig.step()
    rig.step()
    assert rig.group.pool.num_available == 4
    rig.submit(list(range(50, 66)), max_tokens=1)  # 4 pages
    plan = rig.step()
    assert plan is not None
    assert not plan.starts
    rig.run()
    assert rig.group.num_preemptions == 0
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}


def fill(rig: Rig, *priorities: int) -> None:
    for number, priority in enumerate(priorities):
        rig.submit([100 * number + index + 10 for index in range(8)], max_tokens=12, ignore_eos=True, priority=priority)


def test_pages_exhausted_the_newest_goes_and_everyone_gets_its_tokens() -> None:
    rig = Rig(make_config(), num_pages=10, page_size=4)
    fill(rig, 0, 0, 0)
    order = []
    while rig.scheduler.requests:
        rig.step()
        order += [number for number in rig.ends if number not in order]
    assert rig.group.num_preemptions > 0
    assert order == [1, 2, 3]
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2, 3)}
    rig.check_idle()


def test_the_lowest_priority_goes_before_the_newest() -> None:
    rig = Rig(make_config(overlap=False), num_pages=8, page_size=4)
    fill(rig, -5, 5)
    while not rig.group.num_preemptions:
        rig.step()
    assert [request.id for request in rig.group.running()] == [2]
    rig.run()
    rig.check_idle()


def test_a_preempted_request_keeps_its_prefix_cached_and_its_place() -> None:
    rig = Rig(make_config(overlap=False), num_pages=8, page_size=4)
    fill(rig, 0, 0)
    while not rig.group.num_preemptions:
        rig.step()
    rig.submit([900], max_tokens=1)
    peeked = rig.group.queue.peek(rig.now)
    assert peeked is rig.request(2)
    assert rig.group.pool.num_cached > 0
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2, 3)}


def test_who_would_free_nothing_is_left_alone() -> None:
    rig = Rig(make_config(overlap=False), num_pages=9, page_size=4)
    fill(rig, 0, 0)
    rig.step()
    rig.submit([7, 8], max_tokens=2, ignore_eos=True)  # the newest, and it wants no page before it ends
    rig.step()
    newest = rig.request(3)
    for page in newest.pages:
        rig.group.pool.hold(page)  # as if others shared all of them
    while rig.group.pool.num_available:
        rig.group.pool.allocate()
    older = rig.request(2)
    for request in (rig.request(1), older):
        request.num_computed, request.length = request.capacity, request.capacity + 1
    rig.group.make_room()
    assert older.slot == -1
    assert newest.slot >= 0
