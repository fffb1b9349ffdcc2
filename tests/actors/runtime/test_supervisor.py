"""Children in real processes, and what they say on their line to the node."""

import asyncio
import signal
import socket

import pytest

from actors.runtime.child import ChildReport, NodeLine, Progressed, Ready
from actors.runtime.supervisor import Death, Supervisor
from tests.actors.runtime.small_child import Spec

MODULE = "tests.actors.runtime.small_child"


class Node:
    """Hears of children."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, ChildReport] | Death] = asyncio.Queue()
        self.children = Supervisor(lambda name, report: self.heard.put_nowait((name, report)), self.heard.put_nowait)

    async def start(self, name: str, spec: Spec) -> None:
        await self.children.start(name, spec, module=MODULE, environment={})

    async def next(self) -> tuple[str, ChildReport] | Death:
        async with asyncio.timeout(20):
            return await self.heard.get()


async def test_reports_are_heard_in_order_and_a_child_that_is_asked_to_stop_is_no_death() -> None:
    node = Node()
    async with node.children:
        await node.start("a", Spec([0.25, 1.0]))
        assert [await node.next() for _ in range(3)] == [
            ("a", Progressed(0.25)),
            ("a", Progressed(1.0)),
            ("a", Ready()),
        ]
    assert node.heard.empty()


async def test_a_child_that_ends_by_itself_is_a_death_with_its_exit_code() -> None:
    node = Node()
    async with node.children:
        await node.start("a", Spec([0.5], exit_code=3))
        assert await node.next() == ("a", Progressed(0.5))
        death = await node.next()
    assert death == Death("a", 3)
    assert death.reason == "a ended with exit code 3"


async def test_a_killed_child_is_a_death_by_its_signal_and_the_others_live_on() -> None:
    node = Node()
    async with node.children:
        for name in ("a", "b"):
            await node.start(name, Spec([]))
            assert await node.next() == (name, Ready())
        node.children._children["a"].process.kill()
        death = await node.next()
        assert death == Death("a", -signal.SIGKILL)
        assert death.reason == "a was ended by SIGKILL"
        assert node.children._children["b"].process.poll() is None


def test_a_child_whose_node_has_ended_before_it_was_told_what_it_is_hears_so() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    line = NodeLine(theirs.detach())
    with pytest.raises(EOFError):
        line.receive_spec()
    line._socket.close()
