"""Random cuts, frame sizes and readers: what arrives is what was generated, each token once, in order."""

import asyncio
import random

import pytest

from client import Client, Reconnect
from protocol.wire import Cancel, Credit, Generate
from tests.client.fake_server import FakeServer, Peer, finished, tokens

NUM_STREAMS, NUM_TOKENS = 5, 60
ENDLESS = Reconnect(max_attempts=1000, base_s=0.0001, cap_s=0.001)


class CuttingServer:
    """Sends token i of every stream as "<i>", one to three a frame, within its credit; cuts the socket at random."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.num_cuts = 0

    async def serve(self, peer: Peer) -> None:
        streams: dict[str, tuple[Generate, int]] = {}
        allowances: dict[str, int] = {}
        while True:
            ready = [name for name in streams if allowances[name] > 0]
            if not ready:
                command = await peer.next()
                assert isinstance(command, Generate | Credit | Cancel)
                if isinstance(command, Generate):
                    streams[command.id] = (command, len(command.resume_tokens or []))
                    allowances[command.id] = command.credit
                elif isinstance(command, Credit) and command.id in allowances:
                    allowances[command.id] += command.tokens
                continue
            if self._draw.random() < 0.05:
                self.num_cuts += 1
                peer.drop()
                return
            name = self._draw.choice(ready)
            generate, sent = streams[name]
            count = min(self._draw.randint(1, 3), allowances[name], NUM_TOKENS - sent)
            if count:
                await peer.send(tokens(generate, sent, *(f"<{sent + offset}>" for offset in range(count))))
                streams[name] = (generate, sent + count)
                allowances[name] -= count
            else:
                await peer.send(finished(generate, NUM_TOKENS, "length"))
                del streams[name]


@pytest.mark.parametrize("seed", range(20))
async def test_no_token_is_lost_or_repeated_however_the_connection_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    server = CuttingServer(seed)
    async with FakeServer(server.serve) as fake, Client(fake.url, reconnect=ENDLESS) as client, asyncio.timeout(20):

        async def read(credit: int) -> str:
            async with client.stream(prompt="Hi", credit=credit) as stream:
                async for _ in stream:
                    for _ in range(draw.randint(0, 3)):  # a reader of its own pace
                        await asyncio.sleep(0)
            assert stream.result.tokens == [100 + index for index in range(NUM_TOKENS)]
            return stream.result.text

        texts = await asyncio.gather(*(read(draw.randint(1, 40)) for _ in range(NUM_STREAMS)))
        assert client._live._streams == {}
    assert texts == ["".join(f"<{index}>" for index in range(NUM_TOKENS))] * NUM_STREAMS
    assert server.num_cuts > 0
