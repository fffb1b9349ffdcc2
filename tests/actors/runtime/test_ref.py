"""What holds for every ref, whether the actor shares the process or is reached over sockets."""

import asyncio
from pathlib import Path

import pytest

from actors.runtime.ref import ActorStopped
from tests.actors.runtime.cast import Break, Note, Notebook, Reach, Urgent, over_sockets, reach_locally


@pytest.fixture(params=["in one process", "over sockets"])
def reach(request: pytest.FixtureRequest, tmp_path: Path) -> Reach:
    return reach_locally if request.param == "in one process" else over_sockets(tmp_path)


async def test_messages_of_one_sender_arrive_in_the_order_they_were_sent(reach: Reach) -> None:
    notebook = Notebook()
    async with reach(notebook, 4) as ref:
        for number in range(500):
            await ref.tell(Note(str(number)))
        await ref.ask(Note("last"), timeout_s=5)
    assert notebook.texts == [*map(str, range(500)), "last"]


async def test_an_ask_is_answered_with_what_receive_returns(reach: Reach) -> None:
    async with reach(Notebook()) as ref:
        assert await ref.ask(Note("milk"), timeout_s=5) == "noted milk"


async def test_many_asks_at_once_each_get_their_own_answer(reach: Reach) -> None:
    async with reach(Notebook(), 4) as ref:
        answers = await asyncio.gather(*(ref.ask(Note(str(number)), timeout_s=5) for number in range(100)))
    assert answers == [f"noted {number}" for number in range(100)]


async def test_tell_waits_while_the_mailbox_is_full_and_nothing_is_lost(reach: Reach) -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with reach(notebook, 2) as ref:
        sent: list[int] = []

        async def send_many() -> None:
            for number in range(2000):
                await ref.tell(Note(str(number) + "x" * 2000))
                sent.append(number)

        sending = asyncio.create_task(send_many())
        await notebook.entered.wait()
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(sent) < 2000
        notebook.gate.set()
        await sending
        await ref.ask(Note("last"), timeout_s=5)
    assert [text.rstrip("x") for text in notebook.texts] == [*map(str, range(2000)), "last"]


async def test_try_tell_is_refused_once_everything_is_full(reach: Reach) -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with reach(notebook, 2) as ref:
        await ref.tell(Note("first"))
        await notebook.entered.wait()
        num_sent = 0
        while ref.try_tell(Note("x" * 100_000)):
            num_sent += 1
            await asyncio.sleep(0)
            assert num_sent < 1000
        notebook.gate.set()
        await ref.ask(Note("last"), timeout_s=5)
    assert len(notebook.texts) == num_sent + 2


async def test_control_messages_overtake_a_full_mailbox(reach: Reach) -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with reach(notebook, 2) as ref:
        notes = [asyncio.create_task(ref.tell(Note("x" * 10_000))) for _ in range(100)]
        await notebook.entered.wait()
        urgent = asyncio.create_task(ref.ask(Urgent("fire"), timeout_s=5))
        await asyncio.sleep(0.05)  # the socket's own time: what is sent must have had the chance to arrive
        notebook.gate.set()
        assert await urgent == "noted fire"
        assert notebook.texts.index("fire") <= 2
        await asyncio.gather(*notes)
        await ref.ask(Note("last"), timeout_s=5)


async def test_an_ask_in_flight_when_the_actor_fails_raises_actor_stopped(reach: Reach) -> None:
    async with reach(Notebook()) as ref:
        with pytest.raises(ActorStopped):
            await ref.ask(Break("its own"), timeout_s=5)


async def test_nobody_hangs_when_an_actor_fails(reach: Reach) -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with reach(notebook, 2) as ref:
        waiting = [asyncio.create_task(ref.tell(Break("first")))]
        await notebook.entered.wait()
        waiting += [asyncio.create_task(ref.ask(Note("x" * 100_000), timeout_s=5)) for _ in range(20)]
        waiting += [asyncio.create_task(ref.tell(Note("x" * 100_000))) for _ in range(20)]
        await asyncio.sleep(0)
        notebook.gate.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, ActorStopped) for outcome in outcomes)
    assert sum(isinstance(outcome, ActorStopped) for outcome in outcomes) >= 20


async def test_a_dead_actor_can_neither_be_told_nor_asked(reach: Reach) -> None:
    async with reach(Notebook()) as ref:
        with pytest.raises(ActorStopped):
            await ref.ask(Break("now"), timeout_s=5)
        with pytest.raises(ActorStopped):
            await ref.ask(Note("hello?"), timeout_s=5)
        with pytest.raises(ActorStopped):
            await ref.tell(Note("hello?"))


async def test_an_ask_that_takes_too_long_times_out_and_the_actor_goes_on(reach: Reach) -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with reach(notebook) as ref:
        with pytest.raises(TimeoutError):
            await ref.ask(Note("slow"), timeout_s=0.01)
        notebook.gate.set()
        assert await ref.ask(Note("quick"), timeout_s=5) == "noted quick"
