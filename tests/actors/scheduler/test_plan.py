from protocol.step import StepPlan
from tests.actors.scheduler.rig import Rig, make_config


def counts(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [row.count for row in plan.rows]


def prompt(length: int, first: int = 100) -> list[int]:
    return [first + index for index in range(length)]


def test_decodes_come_first_and_a_prompt_is_cut_at_the_budget_on_a_page_end() -> None:
    rig = Rig(make_config(step_tokens=16, overlap=False))
    rig.submit(prompt(5), ignore_eos=True)
    rig.step()
    rig.submit(prompt(40, 200), ignore_eos=True)
    plan = rig.step()
    assert counts(plan) == [1, 12]  # 15 tokens are left, 12 end a page of 4
    assert counts(rig.step()) == [1, 12]
    assert counts(rig.step()) == [1, 12]
    assert counts(rig.step()) == [1, 4]
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}
    rig.check_idle()


def test_a_page_of_prefill_fits_beside_any_number_of_decodes() -> None:
    rig = Rig(make_config(max_running=16, step_tokens=10, overlap=False), page_size=4)
    for number in range(12):
        rig.submit([number + 10], max_tokens=30, ignore_eos=True)
    for _ in range(6):
        rig.step()
    plan = rig.step()
    assert rig.group.max_rows == 6
    assert plan is not None
    assert plan.num_tokens <= 10
    rig.run()
    rig.check_idle()


def test_the_next_step_is_planned_before_the_token_is_known() -> None:
    rig = Rig(make_config())
    rig.submit(prompt(5), ignore_eos=True)
    first, second, third = rig.plan(), rig.plan(), rig.plan()
    assert counts(first) == [5]
    assert counts(second) == [1]
    assert second is not None
    assert second.rows[0].start == 5
    assert third is None  # two in flight
    rig.run()
    assert rig.tokens[1] == rig.expected(1)


def test_without_overlap_one_step_is_in_flight() -> None:
    rig = Rig(make_config(overlap=False))
    rig.submit(prompt(5))
    assert rig.plan() is not None
    assert rig.plan() is None


def test_a_row_whose_limit_is_reached_by_the_step_in_flight_is_not_planned_again() -> None:
    rig = Rig(make_config())
    rig.submit(prompt(5), max_tokens=1)
    assert rig.plan() is not None
    assert rig.plan() is None
    rig.run()
    assert len(rig.tokens[1]) == 1


def test_pages_are_told_to_the_device_chunk_by_chunk() -> None:
    rig = Rig(make_config(step_tokens=8, overlap=False), page_size=4)
    rig.submit(prompt(10), ignore_eos=True)
    told = []
    for _ in range(5):
        plan = rig.step()
        assert plan is not None
        told.append(len(plan.rows[0].new_pages))
    assert told == [2, 1, 0, 0, 1]  # 8 tokens, 10, then decode: token 12 opens a page


def test_however_small_the_budget_a_page_of_prefill_is_computed() -> None:
    rig = Rig(make_config(step_tokens=1, overlap=False), page_size=4)
    rig.submit(prompt(6))
    assert [counts(rig.step()), counts(rig.step())] == [[4], [2]]
    rig.run()
    assert rig.tokens[1] == rig.expected(1)
