"""Crowds, sudden departures and clients that never read: the node ends idle, whole and no bigger than before."""

import asyncio
import json

import psutil
from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.running_node import RunningNode


async def opened(node: RunningNode) -> ClientConnection:
    socket = await connect(f"{node.url}/v1/stream", proxy=None, max_size=None, open_timeout=60)
    await socket.recv()
    return socket


def request(name: str, max_tokens: int, **fields: object) -> str:
    message = {"type": "generate", "id": name, "prompt": f"request {name}", "max_tokens": max_tokens}
    return json.dumps({**message, "ignore_eos": True, **fields})


async def finished(socket: ClientConnection, count: int) -> None:
    while count:
        event = json.loads(await socket.recv())
        assert event["type"] != "failed", event
        count -= event["type"] == "finished"


def resources(node: RunningNode) -> dict[str, tuple[int, int, int]]:
    """(descriptors, threads, resident bytes) of every actor."""
    facts = {}
    for name, pid in node.actors.items():
        process = psutil.Process(pid)
        facts[name] = (process.num_fds(), process.num_threads(), process.memory_info().rss)
    return facts


async def test_two_thousand_requests_leave_no_descriptor_thread_or_memory_behind(counting_node: RunningNode) -> None:
    async def burst(num_requests: int) -> None:
        socket = await opened(counting_node)
        for i in range(num_requests):
            await socket.send(request(f"{i}", 4))
        await finished(socket, num_requests)
        await socket.close()

    for _ in range(4):  # the first requests fill pools, caches and lazily made threads
        await burst(250)
    await counting_node.becomes_idle()
    before = resources(counting_node)
    for _ in range(8):
        await burst(250)
    await counting_node.becomes_idle()
    after = resources(counting_node)
    for name, (descriptors, threads, resident) in after.items():
        assert descriptors <= before[name][0] + 1, f"{name}: {before[name][0]} -> {descriptors} descriptors"
        assert threads <= before[name][1] + 1, f"{name}: threads {before[name][1]} -> {threads}"
        assert resident <= before[name][2] + 24 * 2**20, f"{name}: {before[name][2]} -> {resident} bytes resident"


async def test_five_hundred_sockets_closed_in_one_tick_free_everything(counting_node: RunningNode) -> None:
    sockets = []
    for batch in range(10):
        sockets += await asyncio.gather(*(opened(counting_node) for _ in range(50)))
        del batch
    for i, socket in enumerate(sockets):
        await socket.send(request(f"{i}", 4000))
    await asyncio.gather(*(socket.recv() for socket in sockets))
    for socket in sockets:
        socket.transport.abort()
    await counting_node.becomes_idle()
    socket = await opened(counting_node)
    await socket.send(request("after", 4))
    await finished(socket, 1)
    await socket.close()


async def test_a_client_that_never_reads_is_dropped_and_others_go_on(counting_node: RunningNode) -> None:
    deaf = await connect(f"{counting_node.url}/v1/stream", proxy=None, max_queue=1)
    deaf.transport.pause_reading()
    pid = counting_node.actors["ingress"]
    before = psutil.Process(pid).memory_info().rss
    for i in range(64):
        await deaf.send(request(f"{i}", 8000, credit=2**31 - 1, return_tokens=True, logprobs=20))
    other = await opened(counting_node)
    for i in range(5):
        await other.send(request(f"{i}", 500))
        async with asyncio.timeout(30):
            await finished(other, 1)
    await other.close()
    await counting_node.becomes_idle(timeout_s=90)
    assert psutil.Process(pid).memory_info().rss < before + 64 * 2**20
    deaf.transport.abort()
