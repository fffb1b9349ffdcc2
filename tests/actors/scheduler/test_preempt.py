from tests.actors.scheduler.rig import Rig, make_config


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


def test_who_holds_only_shared_pages_and_wants_none_is_left_alone() -> None:
    rig = Rig(make_config(overlap=False, max_running=3, prefix_cache=True), num_pages=5, page_size=4)
    rig.submit([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=8, ignore_eos=True)
    rig.run()
    rig.check_idle()
    assert rig.group.num_preemptions == 0
