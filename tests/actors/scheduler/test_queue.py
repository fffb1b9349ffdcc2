from actors.scheduler.fairness import Account, TokenCounters
from actors.scheduler.queue import WaitingQueue
from actors.scheduler.request import Request
from protocol.sampling import SamplingParams


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
    assert len(queue) == 1
    assert sum(len(line) for level in queue._levels.values() for line in level.lines.values()) < 100
    assert drain(queue) == [0]
