"""One demo node for all tests that only talk to it; tests that stop or break a node start their own."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.running_node import RunningNode, running_node


@pytest.fixture(scope="session")
def demo_node() -> Iterator[RunningNode]:
    with running_node("--model", "demo", "--devices", "cpu", "--num-pages", "512") as node:
        yield node


@pytest.fixture(scope="session")
def counting_node() -> Iterator[RunningNode]:
    """The whole process tree around a device that costs nothing: for floods."""
    with running_node("--model", "demo", "--devices", "counting", "--num-pages", "4096") as node:
        yield node
