"""Tokens a second through the ingress against bare `websockets` sends of the same frames, side by side in one process.

The engine costs nothing here: steps of one token for each stream are handed to the actor as a scheduler would. Clients
are another process that only drains sockets. Run: `python -m tests.benchmarks.streaming [--loop uvloop|asyncio]`.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Self

import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode

from actors.ingress.actor import IngressActor
from actors.ingress.config import IngressConfig
from actors.runtime.clock import RealClock
from protocol.messages import EngineReady, GetHealth, IngressInbox, TokenDelta, TokensGenerated
from tests.actors.ingress.byte_model import write_byte_model
from tests.actors.ingress.scripted import ScriptedScheduler
from tests.actors.runtime.local import LocalSystem

NUM_STREAMS = 64
NUM_STEPS = 1000
NUM_ROUNDS = 5
LETTER = 120
"""The token x."""
Step = Callable[[int], Awaitable[None]]


def main() -> None:
    """Measure both shapes, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    loop = parser.parse_args().loop
    print(f"{NUM_STREAMS} streams, {NUM_STEPS} steps of one token each, {loop}, median of {NUM_ROUNDS} rounds")
    for num_connections in (NUM_STREAMS, 1):
        rounds = [_round(loop, num_connections) for _ in range(NUM_ROUNDS)]
        ours, bare = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        print(
            f"{num_connections:3} connections: ingress {ours:9,.0f} tok/s, bare {bare:9,.0f} tok/s, ratio {ratio:.2f}"
        )


def _round(loop: str, num_connections: int) -> tuple[float, float]:
    """Tokens a second of CPU time: (ingress, bare)."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_ingress(num_connections)), runner.run(_bare(num_connections))


async def _ingress(num_connections: int) -> float:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder))
        scheduler = ScriptedScheduler()
        actor = IngressActor(IngressConfig(), model, scheduler, listener, RealClock())
        async with LocalSystem() as system:
            scheduler.ingress = system.start(actor, name="ingress")
            await scheduler.ingress.tell(EngineReady(10_000))
            await scheduler.ingress.ask(GetHealth(), timeout_s=10)
            with _Drains(listener.getsockname()[1], num_connections) as drains:
                submits = [await scheduler.accept() for _ in range(NUM_STREAMS)]

                async def step(index: int) -> None:
                    deltas = [TokenDelta(submit.request, index, [LETTER]) for submit in submits]
                    await _tick(actor, TokensGenerated(deltas))

                rate = await _time(step)
                for submit in submits:
                    await scheduler.finish(submit)
                await scheduler.ingress.ask(GetHealth(), timeout_s=10)
                await drains.check()
    return rate


async def _tick(actor: IngressActor, message: IngressInbox) -> None:
    await actor.receive(message)
    await actor.after_batch()


async def _bare(num_connections: int) -> float:
    sockets: list[ServerConnection] = []
    arrived = asyncio.Event()
    over = asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        sockets.append(connection)
        if len(sockets) == num_connections:
            arrived.set()
        await over.wait()

    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        with _Drains(server.sockets[0].getsockname()[1], num_connections) as drains:
            await arrived.wait()
            owners = [sockets[number % num_connections] for number in range(NUM_STREAMS)]

            async def step(index: int) -> None:
                for number, owner in enumerate(owners):
                    await owner.send(f'{{"type":"tokens","id":"s{number}","index":{index},"count":1,"text":"x"}}')

            rate = await _time(step)
            over.set()
            await drains.check()
    return rate


async def _time(step: Step) -> float:
    began = time.process_time()
    for index in range(NUM_STEPS):
        await step(index)
        await asyncio.sleep(0)
    return NUM_STEPS * NUM_STREAMS / (time.process_time() - began)


class _Drains:
    """The client process: opens sockets, asks for the streams, reads to the end, counts tokens."""

    def __init__(self, port: int, num_connections: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_drain, args=(port, num_connections, theirs))

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()

    async def check(self) -> None:
        """Correctness first: every token has arrived."""
        self._pipe.send("stop")
        while not self._pipe.poll():  # noqa: ASYNC110 - a pipe of another process has no event
            await asyncio.sleep(0.01)
        count = self._pipe.recv()
        assert count == NUM_STREAMS * NUM_STEPS, f"{count} tokens arrived, not {NUM_STREAMS * NUM_STEPS}"


def _drain(port: int, num_connections: int, pipe: Pipe) -> None:
    asyncio.run(_drain_all(port, num_connections, pipe))


async def _drain_all(port: int, num_connections: int, pipe: Pipe) -> None:
    clients = [await _open(port) for _ in range(num_connections)]
    for number in range(NUM_STREAMS):
        clients[number % num_connections][1].write(_generate(number))
    reads = [asyncio.ensure_future(_count(reader, NUM_STEPS * NUM_STREAMS // num_connections)) for reader, _ in clients]
    counts = await asyncio.gather(*reads)
    for _, writer in clients:
        writer.close()
    pipe.recv()
    pipe.send(sum(counts))


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    writer.write(
        f"GET /v1/stream HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def _generate(number: int) -> bytes:
    command = {"type": "generate", "id": f"s{number}", "prompt": "x", "max_tokens": NUM_STEPS}
    return bytes(Frame(Opcode.TEXT, json.dumps(command).encode()).serialize(mask=True))


async def _count(reader: asyncio.StreamReader, share: int) -> int:
    """Tokens of one connection, up to its share."""
    total, rest = 0, b""
    pattern = re.compile(rb'"type":"tokens","id":"s\d+","index":\d+,"count":(\d+),')
    while total < share:
        data = rest + await reader.read(1 << 16)
        matches = list(pattern.finditer(data))
        total += sum(int(match[1]) for match in matches)
        rest = data[matches[-1].end() :] if matches else data
    return total


if __name__ == "__main__":
    main()
