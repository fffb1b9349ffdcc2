import asyncio
from typing import Any

import pytest

from actors.runtime.actor import Actor
from actors.runtime.ref import ActorStopped
from tests.actors.runtime.cast import Break, BrokenError, Note, Notebook
from tests.actors.runtime.local import LocalSystem


async def test_the_hooks_are_called_in_order_and_after_batch_once_for_what_was_waiting() -> None:
    notebook = Notebook()
    async with LocalSystem() as system:
        ref = system.start(notebook, name="notebook")
        for number in range(100):
            assert ref.try_tell(Note(str(number)))
        await ref.ask(Note("last"), timeout_s=5)
    assert notebook.hooks == ["started", "after 64", "after 101", "stopped"]


async def test_what_failed_an_actor_is_told_by_name_and_touches_no_other_actor() -> None:
    async with LocalSystem() as system:
        broken = system.start(Notebook(), name="broken")
        sound = system.start(Notebook(), name="sound")
        await broken.tell(Break("a reason"))
        name, error = await system.wait_failed()
        assert (name, str(error)) == ("broken", "a reason")
        assert await sound.ask(Note("still here"), timeout_s=5) == "noted still here"


async def test_a_failure_that_nobody_waited_for_is_raised_when_the_system_is_left() -> None:
    async def fail_unseen() -> None:
        async with LocalSystem() as system:
            ref = system.start(Notebook(), name="notebook")
            with pytest.raises(ActorStopped):
                await ref.ask(Break("unseen"), timeout_s=5)

    with pytest.raises(BrokenError, match="unseen"):
        await fail_unseen()


async def test_stopping_an_actor_frees_everybody_who_waits_on_it() -> None:
    notebook = Notebook()
    notebook.gate.clear()
    async with LocalSystem() as system:
        ref = system.start(notebook, name="notebook", capacity=1)
        asked = [asyncio.create_task(ref.ask(Note("a"), timeout_s=5)) for _ in range(5)]
        await notebook.entered.wait()
        await system.stop("notebook")
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ActorStopped] * 5
    assert notebook.hooks[-1] == "stopped"


class Gardener(Actor[Note]):
    """Spawns work for each note; answers with a future."""

    def __init__(self) -> None:
        self.cancelled = False
        self.later: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive(self, message: Note) -> Any:
        if message.text == "wait":
            self.spawn(self._wait(), name="wait")
        if message.text == "fail":
            self.spawn(self._fail(), name="fail")
        if message.text == "later":
            return self.later
        return None

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def _fail(self) -> None:
        raise ValueError("spawned work failed")


async def test_spawned_work_ends_with_its_actor() -> None:
    gardener = Gardener()
    async with LocalSystem() as system:
        ref = system.start(gardener, name="gardener")
        await ref.ask(Note("wait"), timeout_s=5)
        await asyncio.sleep(0)
    assert gardener.cancelled


async def test_spawned_work_that_fails_fails_its_actor() -> None:
    async with LocalSystem() as system:
        ref = system.start(Gardener(), name="gardener")
        await ref.tell(Note("fail"))
        _, error = await system.wait_failed()
    assert str(error) == "spawned work failed"


async def test_an_answer_may_come_later_while_other_messages_are_received() -> None:
    gardener = Gardener()
    async with LocalSystem() as system:
        ref = system.start(gardener, name="gardener")
        asked = asyncio.create_task(ref.ask(Note("later"), timeout_s=5))
        await ref.ask(Note("another"), timeout_s=5)
        assert not asked.done()
        gardener.later.set_result("at last")
        assert await asked == "at last"


async def test_an_answer_that_never_comes_ends_with_the_actor() -> None:
    async with LocalSystem() as system:
        ref = system.start(Gardener(), name="gardener")
        asked = asyncio.create_task(ref.ask(Note("later"), timeout_s=5))
        await ref.ask(Note("another"), timeout_s=5)
        await system.stop("gardener")
        with pytest.raises(ActorStopped):
            await asked


async def test_spawning_outside_a_life_is_refused() -> None:
    gardener = Gardener()
    with pytest.raises(RuntimeError, match="not running"):
        gardener.spawn(gardener._fail(), name="too early")
