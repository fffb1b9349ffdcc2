from tests.actors.scheduler.rig import Rig, make_config
from tests.actors.scheduler.test_step import counts, prompt


def test_an_unchunked_prompt_goes_whole_and_alone() -> None:
    rig = Rig(make_config(step_tokens=16, chunked_prefill=False, overlap=False))
    rig.submit(prompt(40), ignore_eos=True)
    rig.submit(prompt(40, 300), ignore_eos=True)
    assert counts(rig.step()) == [40]
    assert counts(rig.step()) == [1, 40]
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2)}


def test_small_prompts_share_a_step() -> None:
    rig = Rig(make_config(step_tokens=16, chunked_prefill=False))
    for number in range(3):
        rig.submit(prompt(5, 100 * (number + 1)))
    assert counts(rig.step()) == [5, 5, 5]


def test_a_static_batch_is_held_until_its_longest_member_ends() -> None:
    rig = Rig(make_config(max_running=2, batching="static", overlap=False))
    rig.submit(prompt(5), max_tokens=2, ignore_eos=True)
    rig.submit(prompt(5, 200), max_tokens=10, ignore_eos=True)
    rig.submit(prompt(5, 300), max_tokens=2, ignore_eos=True)
    while 2 not in rig.ends:
        rig.step()
        assert not rig.tokens[3]
    assert 1 in rig.ends
    rig.run()
    assert rig.tokens == {number: rig.expected(number) for number in (1, 2, 3)}
    stats = rig.scheduler.group_stats[0]
    # first batch: 2 + 2 rows, then 8 steps of 1 row in 2 slots; second batch: 1 row in 1 slot, twice
    assert (stats.num_useful_rows, stats.num_held_rows) == (4 + 8 + 2, 4 + 16 + 2)
