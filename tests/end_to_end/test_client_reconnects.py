"""The client library through a cable that is pulled again and again: the text is as if nothing had happened."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from client import Client, Reconnect
from tests.end_to_end.running_node import RunningNode, running_node

QUICK = Reconnect(max_attempts=20, base_s=0.01, cap_s=0.05)


class Cable:
    """A TCP relay to the node; `cut` breaks every connection on it at once."""

    def __init__(self, node_url: str) -> None:
        host, _, port = node_url.removeprefix("ws://").partition(":")
        self._node = (host, int(port))
        self._writers: list[asyncio.StreamWriter] = []
        self.num_connections = 0
        self.url = ""

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        there_reader, there_writer = await asyncio.open_connection(*self._node)
        self._writers += [writer, there_writer]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._copy(reader, there_writer))
            tasks.create_task(self._copy(there_reader, writer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def cable_to(node: RunningNode) -> AsyncIterator[Cable]:
    cable = Cable(node.url)
    server = await asyncio.start_server(cable.relay, "127.0.0.1", 0)
    cable.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield cable
        cable.cut()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_stream_that_is_cut_three_times_says_what_an_uncut_one_says(
    demo_node: RunningNode, temperature: float
) -> None:
    question = [{"role": "user", "content": "Write a short story about a lighthouse. Use emoji 🌊🔦."}]
    async with Client(demo_node.url) as client:
        whole = await client.generate(messages=question, max_tokens=64, temperature=temperature, seed=5)
    async with cable_to(demo_node) as cable, Client(cable.url, reconnect=QUICK) as client:
        stream = client.stream(messages=question, max_tokens=64, temperature=temperature, seed=5)
        async with stream, asyncio.timeout(60):
            cuts = [5, 20, 40]
            async for _ in stream:
                if cuts and stream.result.num_tokens >= cuts[0]:
                    cuts.pop(0)
                    cable.cut()
    assert stream.result.text == whole.text
    assert stream.result.tokens == whole.tokens
    assert stream.result.finish_reason == whole.finish_reason
    assert stream.result.usage.completion_tokens == whole.usage.completion_tokens
    assert cable.num_connections == 4


async def test_forty_streams_over_a_cut_cable_are_all_whole(counting_node: RunningNode) -> None:
    async with Client(counting_node.url) as client:
        whole = [await client.generate(prompt=f"number {number}", max_tokens=300) for number in range(40)]
    async with cable_to(counting_node) as cable, Client(cable.url, reconnect=QUICK) as client, asyncio.timeout(60):

        async def one(number: int) -> list[int]:
            async with client.stream(prompt=f"number {number}", max_tokens=300, credit=64) as stream:
                async for _ in stream:
                    if number % 10 == 0 and 100 < stream.result.num_tokens < 110:
                        cable.cut()
            return stream.result.tokens

        tokens = await asyncio.gather(*(one(number) for number in range(40)))
    assert tokens == [result.tokens for result in whole]
    assert cable.num_connections > 1


async def test_a_node_that_is_killed_and_started_again_goes_on_with_its_streams() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    flags = ("--devices", "counting", "--num-pages", "256", "--port", port)
    with running_node(*flags) as first:
        async with Client(first.url, reconnect=QUICK) as client, asyncio.timeout(60):
            whole = await client.generate(prompt="Hi", max_tokens=200)
            async with client.stream(prompt="Hi", max_tokens=200, credit=16) as stream:
                async for _ in stream:
                    if stream.result.num_tokens >= 50:
                        break
                first.process.kill()
                first.process.wait()
                with running_node(*flags):
                    assert "".join([text async for text in stream]) != ""
    assert stream.result.tokens == whole.tokens
    assert stream.result.text == whole.text


async def test_after_all_that_the_node_holds_nothing(demo_node: RunningNode, counting_node: RunningNode) -> None:
    await demo_node.becomes_idle()
    await counting_node.becomes_idle()
