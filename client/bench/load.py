"""The load of a benchmark: what is asked (made from a seed or read from a file), when, and the asking itself.

It may share a core with the server, so it does little. Full-policy: requests due while `max_concurrency` are running
wait here, and their clocks start when they are sent.
"""

import asyncio
import math
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from client.bench.metrics import RequestRecord
from client.errors import APIError, BadRequestError
from protocol.bounds import PositiveCount, TokenId

Distribution = Literal["random", "sharegpt-like"]
SHAREGPT_LEN = (161, 338)
"""Mean prompt and answer of ShareGPT in tokens, as the PagedAttention paper (arXiv:2309.06180, figure 11) has them."""
_SIGMA = 1.1
_MAX_SHARE = 8
"""A lognormal length is cut at so many times its mean."""
_WORDS = "time people way water day part sound work place name line year state light story field road voice".split()


class BenchRequest(Struct, frozen=True, kw_only=True):
    """One request; the native dialect sends `prompt_tokens`, the Responses dialect `text()`."""

    prompt_tokens: list[TokenId]
    max_tokens: PositiveCount

    def text(self) -> str:
        """As many common words as the prompt has tokens: about as many tokens for most tokenizers."""
        return " ".join(_WORDS[token % len(_WORDS)] for token in self.prompt_tokens)


Ask = Callable[[BenchRequest, RequestRecord], Awaitable[None]]
"""Sends one request and fills in its record; raises APIError if it fails."""


class Load:
    """`clock` gives seconds, `sleep` waits: the loop's own, or a test's."""

    def __init__(
        self,
        ask: Ask,
        *,
        max_concurrency: int | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._room = asyncio.Semaphore(max_concurrency or sys.maxsize)
        self._clock = clock
        self._sleep = sleep

    async def offer(self, requests: Sequence[BenchRequest], moments: Iterable[float]) -> list[RequestRecord]:
        """Ask all requests, each at its moment (seconds from now); records in the order of the requests."""
        start = self._clock()
        async with asyncio.TaskGroup() as tasks:
            running = []
            for request, moment in zip(requests, moments, strict=True):
                if (wait_s := start + moment - self._clock()) > 0:
                    await self._sleep(wait_s)
                running.append(tasks.create_task(self._run(request)))
        return [task.result() for task in running]

    async def _run(self, request: BenchRequest) -> RequestRecord:
        async with self._room:
            record = RequestRecord(sent_at=self._clock())
            try:
                await self._ask(request, record)
            except APIError as error:
                record.failed(error.code or "connection", error.message, self._clock())
            else:
                record.ended_at = self._clock()
            return record


class Lengths(Struct, frozen=True, kw_only=True):
    """Means in tokens; `range_ratio` r spreads random lengths evenly over [mean * (1 - r), mean * (1 + r)]."""

    input_len: int
    output_len: int
    range_ratio: float = 0.0


def make_requests(
    distribution: Distribution, lengths: Lengths, *, num_requests: int, vocab_size: int, seed: int
) -> list[BenchRequest]:
    """Draw requests; token ids stay clear of the low ones, where tokenizers keep their special tokens."""
    draw = random.Random(seed)  # noqa: S311 - seeded, so that a run can be repeated
    least = min(1000, vocab_size // 2)
    requests = []
    for _ in range(num_requests):
        input_len = _length(draw, lengths.input_len, distribution, lengths.range_ratio)
        output_len = _length(draw, lengths.output_len, distribution, lengths.range_ratio)
        prompt = [draw.randrange(least, vocab_size) for _ in range(input_len)]
        requests.append(BenchRequest(prompt_tokens=prompt, max_tokens=output_len))
    return requests


def read_requests(path: Path) -> list[BenchRequest]:
    """Read `[{"prompt_tokens": [...], "max_tokens": n}, ...]`. Raises BadRequestError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[BenchRequest])
    except (OSError, msgspec.DecodeError) as error:
        raise BadRequestError(f"dataset file {path}: {error}", param="dataset") from error


def arrivals(num_requests: int, request_rate: float, *, seed: int) -> Iterator[float]:
    """Seconds from the start at which each request is offered: a Poisson process; all at once for an infinite rate."""
    draw = random.Random(seed)  # noqa: S311 - seeded, so that a run can be repeated
    moment = 0.0
    for _ in range(num_requests):
        yield moment
        if math.isfinite(request_rate):
            moment += draw.expovariate(request_rate)


def _length(draw: random.Random, mean: int, distribution: Distribution, range_ratio: float) -> int:
    if distribution == "random":
        return draw.randint(max(1, math.floor(mean * (1 - range_ratio))), max(1, math.ceil(mean * (1 + range_ratio))))
    length = draw.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
    return min(max(1, round(length)), _MAX_SHARE * mean)
