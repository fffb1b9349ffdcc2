from tests.actors.scheduler.rig import Rig, make_config

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
