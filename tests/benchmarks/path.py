"""How long a request's way is: the functions of ours that run from its frame to its first plan, and from a step back.

    python -m tests.benchmarks.path [--list]

Down: from the arrival of a client's `generate` at the ingress to `ExecuteStep` handed to the worker's ref. Back: from
`StepCompleted` told to the scheduler to the frame with its tokens given to the socket. The real ingress and scheduler
speak over Unix sockets as two processes do, so both ends of that hop count; the worker is a stub. Counted is each
function of `protocol` and `actors` that was called or resumed, once; lambdas and comprehensions are part of theirs.
Time stands still, and no other request runs: nothing but this one is on the way.
"""

import argparse
import asyncio
import json
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import structlog
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol

import actors
from actors.ingress.actor import IngressActor
from actors.ingress.config import IngressConfig
from actors.node.children import inbox_of, ref_to, socket_of
from actors.runtime.actor import Actor
from actors.runtime.mailbox import Runner
from actors.runtime.ref import ActorRef
from actors.runtime.transport import serve_mailbox
from actors.scheduler.actor import SchedulerActor
from actors.scheduler.config import SchedulerConfig
from protocol.messages import ExecuteStep, IngressInbox, SchedulerInbox, StepCompleted, WorkerInbox, WorkerReady
from protocol.step import RowStart, SampledRow, StepPlan, StepResult
from tests.actors.ingress.byte_model import write_byte_model
from tests.actors.runtime.clock import VirtualClock

HOUSE = Path(actors.__file__).parent.parent
OURS = ("actors/", "protocol/")
INNER = re.compile(r"(\.<locals>)?\.<(lambda|listcomp|setcomp|dictcomp|genexpr)>")
LETTER = 120
"""The token x."""


@dataclass
class Way:
    """Module and name of each function, in the order of their first calls."""

    last: CodeType | None = None
    """Where it ends by itself."""
    functions: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def modules(self) -> set[str]:
        """Of those functions."""
        return {module for module, _ in self.functions}

    def begin(self) -> None:
        """Watch what this thread calls."""
        sys.setprofile(self._see)

    def end(self) -> None:
        """Watch no more."""
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code is self.last:
            self.end()
        path = code.co_filename.removeprefix(f"{HOUSE}/")
        if path.startswith(OURS):
            self.functions.setdefault(
                (path.removesuffix(".py").replace("/", "."), INNER.sub("", code.co_qualname)), None
            )


class StubWorker:
    """The ref of a worker that ends `down` and keeps the plan."""

    name = "worker:0"

    def __init__(self) -> None:
        self.down = Way()
        self.plans: asyncio.Queue[StepPlan] = asyncio.Queue()

    async def tell(self, message: WorkerInbox) -> None:
        self.down.end()
        assert isinstance(message, ExecuteStep)
        self.plans.put_nowait(message.plan)

    def try_tell(self, message: WorkerInbox) -> bool:
        raise AssertionError(message)

    async def ask(self, message: WorkerInbox, *, timeout_s: float) -> Any:
        raise AssertionError(message, timeout_s)


@dataclass
class Engine:
    """Parts that run."""

    port: int
    worker: StubWorker
    scheduler: ActorRef[SchedulerInbox]


async def measure() -> tuple[Way, Way]:
    """One request first for all that is done once; then the ways of the second: down, and back of its first token.

    Of its two tokens the second is planned while the first is computed, so that none is left to plan on the way back.
    """
    async with engine() as parts:
        reader, writer = await connect(parts.port)
        for number in range(2):
            parts.worker.down = down = Way()
            down.begin()
            writer.write(generate(number))
            first, second = [await parts.worker.plans.get() for _ in range(2)]
            await reader.readuntil(b'"accepted"')
            start = first.starts[0]
            back = Way(last=Protocol.data_to_send.__code__)  # the last that a frame passes before the socket has it
            back.begin()
            await parts.scheduler.tell(completed(first, start))
            await reader.readuntil(b'"tokens"')
            await parts.scheduler.tell(completed(second, start))
            await reader.readuntil(b'"finished"')
        writer.close()
        await writer.wait_closed()
    return down, back


def completed(plan: StepPlan, start: RowStart) -> StepCompleted:
    """The token of the only row."""
    return StepCompleted(0, StepResult(plan.epoch, plan.step, [SampledRow(start.slot, start.request, 0, LETTER)]))


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    """Ingress and scheduler as the node's children host them, and a clock that stands still: no deadline disturbs."""
    worker, clock = StubWorker(), VirtualClock()
    listener = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_byte_model(run_dir)
        to_ingress, to_scheduler, ours = (
            ref_to(run_dir, name, inbox_of(print)) for name in ("ingress", "scheduler", "scheduler")
        )
        ingress = IngressActor(IngressConfig(), model, to_scheduler, listener, clock)
        scheduler = SchedulerActor(SchedulerConfig(), model, to_ingress, [[worker]], clock)
        await stack.enter_async_context(hosted(ingress, "ingress", IngressInbox, run_dir))
        await stack.enter_async_context(hosted(scheduler, "scheduler", SchedulerInbox, run_dir))
        await ours.tell(WorkerReady(worker=0, epoch=1, num_pages=64, page_size=16))
        yield Engine(listener.getsockname()[1], worker, ours)
        for ref in (ours, to_ingress, to_scheduler):
            await ref.close()


@asynccontextmanager
async def hosted(actor: Actor[Any], name: str, inbox: Any, run_dir: Path) -> AsyncIterator[None]:
    """As `actors.node.children` does it."""
    runner = Runner(actor, name=name, capacity=256)
    async with serve_mailbox(runner.mailbox, socket_of(run_dir, name), inbox):
        running = asyncio.create_task(runner.run())
        yield
        running.cancel()
        await asyncio.wait([running])


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has heard `hello`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET /v1/stream HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b'"hello"')
    return reader, writer


def generate(number: int) -> bytes:
    """A frame with one request: the second shares no page with the first."""
    command = {"type": "generate", "id": f"s{number}", "prompt": f"{number} is my number", "max_tokens": 2}
    return bytes(Frame(Opcode.TEXT, json.dumps(command).encode()).serialize(mask=True))


def show(title: str, way: Way, *, listed: bool) -> None:
    print(f"{title}: {len(way.functions)} functions in {len(way.modules)} modules")
    if listed:
        for module, function in way.functions:
            print(f"    {module:32} {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the functions, in the order of their first call")
    listed = parser.parse_args().list
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    down, back = asyncio.run(measure())
    show("frame to ExecuteStep", down, listed=listed)
    show("StepCompleted to frame", back, listed=listed)


if __name__ == "__main__":
    main()
