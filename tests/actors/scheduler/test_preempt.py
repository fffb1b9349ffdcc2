from actors.scheduler.preempt import make_room
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
    make_room(rig.group)
    assert older.slot == -1
    assert newest.slot >= 0
