from actors.scheduler.queue import TokenCounters, WaitingQueue
from actors.scheduler.request import Account, Request
from protocol.sampling import SamplingParams
from tests.actors.scheduler.rig import Rig, make_config


def make(arrival: int, account: Account, *, priority: int = 0, submitted_at: float = 0.0) -> Request:
    return Request(
        id=arrival,
        arrival=arrival,
        submitted_at=submitted_at,
        tokens=[1],
        num_prompt=1,
        num_resumed=0,
        sampling=SamplingParams(max_tokens=1),
        stop_ids=frozenset(),
        max_length=2,
        credit_length=2,
        account=account,
        group=0,
        priority=priority,
    )


def drain(queue: WaitingQueue, now: float = 0.0) -> list[int]:
    order = []
    while (request := queue.peek(now)) is not None:
        queue.pop(request)
        order.append(request.arrival)
    return order


def test_within_a_tenant_the_oldest_goes_first_and_who_comes_back_keeps_its_place() -> None:
    counters = TokenCounters()
    queue, account = WaitingQueue(counters, 30.0), counters.open("a")
    for arrival in (1, 2, 3):
        queue.push(make(arrival, account))
    first = queue.peek(0.0)
    assert first is not None
    queue.pop(first)
    queue.push(make(4, account))
    queue.push(first)
    assert drain(queue) == [1, 2, 3, 4]


def test_higher_priority_goes_first() -> None:
    counters = TokenCounters()
    queue, account = WaitingQueue(counters, 30.0), counters.open("a")
    for arrival, priority in ((1, -10), (2, 0), (3, 10)):
        queue.push(make(arrival, account, priority=priority))
    assert drain(queue) == [3, 2, 1]


def test_waiting_raises_priority() -> None:
    counters = TokenCounters()
    queue, account = WaitingQueue(counters, 10.0), counters.open("a")
    queue.push(make(1, account, priority=0, submitted_at=0.0))
    queue.push(make(2, account, priority=2, submitted_at=15.0))
    assert drain(queue, now=16.0) == [2, 1]
    queue.push(make(1, account, priority=0, submitted_at=0.0))
    queue.push(make(2, account, priority=2, submitted_at=25.0))
    assert drain(queue, now=26.0) == [1, 2]


def test_the_least_served_tenant_goes_first() -> None:
    counters = TokenCounters()
    queue, busy, quiet = WaitingQueue(counters, 1e9), counters.open("busy"), counters.open("quiet")
    for arrival in (1, 2, 3):
        queue.push(make(arrival, busy))
    queue.push(make(4, quiet))
    busy.served += 100  # after it was queued: the order is put right when it surfaces
    assert drain(queue) == [4, 1, 2, 3]


def test_a_flood_of_one_tenant_alternates_with_another() -> None:
    counters = TokenCounters()
    queue, flood, other = WaitingQueue(counters, 1e9), counters.open("flood"), counters.open("other")
    for arrival in range(100):
        queue.push(make(arrival, flood))
    for arrival in (100, 101, 102):
        queue.push(make(arrival, other))
    order = []
    for _ in range(6):
        request = queue.peek(0.0)
        assert request is not None
        queue.pop(request)
        request.account.served += 10
        order.append(request.account.tenant)
    assert order.count("other") == 3


def test_a_tenant_that_was_away_cannot_claim_that_time() -> None:
    counters = TokenCounters()
    queue, steady = WaitingQueue(counters, 1e9), counters.open("steady")
    steady.served = 1000
    request = make(1, steady)
    queue.push(request)
    queue.pop(request)
    assert counters.open("newcomer").served == 1000


def test_a_tenant_without_requests_is_forgotten() -> None:
    counters = TokenCounters()
    account = counters.open("a")
    counters.close(account)
    assert counters.open("a") is not account


def test_who_ended_while_waiting_is_skipped_and_its_entry_does_not_stay() -> None:
    counters = TokenCounters()
    queue, account = WaitingQueue(counters, 30.0), counters.open("a")
    stuck = make(0, account)
    queue.push(stuck)
    for arrival in range(1, 10_000):
        request = make(arrival, account)
        queue.push(request)
        queue.discard(request)
    assert queue.num_queued == 1
    assert sum(len(line) for level in queue._levels.values() for line in level.lines.values()) < 100
    assert drain(queue) == [0]


LONG = [100 + index for index in range(40)]


def test_a_follower_waits_only_for_the_pages_it_shares() -> None:
    rig = Rig(make_config(step_tokens=14, overlap=False), page_size=4)
    leader = rig.submit(LONG, max_tokens=1)
    follower = rig.submit([*LONG[:8], 7], max_tokens=1)
    rig.step()  # 12 tokens of the leader: all shared pages are known
    assert follower not in rig.ends
    while follower not in rig.ends:
        rig.step()
    assert leader not in rig.ends
    assert rig.ends[follower].usage.cached_tokens == 8  # type: ignore[union-attr] # it has finished
    rig.run()
    rig.check_idle()


def test_who_shares_nothing_is_not_held_back() -> None:
    rig = Rig(make_config(step_tokens=40, overlap=False), page_size=4)
    rig.submit(LONG[:12], max_tokens=1)
    rig.submit([*LONG[:12], 5], max_tokens=1)
    rig.submit([5, 6, 7], max_tokens=1)
    plan = rig.step()
    assert plan is not None
    assert [row.count for row in plan.rows] == [12, 3]


def test_salts_do_not_wait_for_each_other() -> None:
    rig = Rig(make_config(step_tokens=40, overlap=False), page_size=4)
    for salt in ("a", "b"):
        rig.submit(LONG[:9], max_tokens=1, cache_salt=salt)
    plan = rig.step()
    assert plan is not None
    assert [row.count for row in plan.rows] == [9, 9]


def test_thousands_of_followers_are_not_looked_at_in_one_step() -> None:
    rig = Rig(make_config(max_waiting=5000, step_tokens=14, overlap=False, check_invariants=False), num_pages=400)
    for number in range(1000):
        rig.submit([*LONG, number % 90], max_tokens=1)
    rig.step()
    assert 0 < rig.group.hold_back.num_parked <= 64
    assert rig.group.num_waiting == 999
    rig.run(max_steps=20_000)
    rig.check_idle()
    assert rig.tokens == {number: rig.expected(number) for number in range(1, 1001)}


def test_a_leader_that_runs_out_of_credit_lets_its_followers_go() -> None:
    rig = Rig(make_config(step_tokens=9, overlap=False))
    leader = rig.submit([*LONG[:12], 1], max_tokens=4, credit=1, ignore_eos=True)
    follower = rig.submit([*LONG[:12], 2], max_tokens=2)
    rig.run()
    assert rig.tokens[follower] == rig.expected(follower)
    assert leader not in rig.ends
