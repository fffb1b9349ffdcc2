"""`python -m client bench`: offers load, prints the block that serving benchmarks print, saves the same figures.

Read next: `client.bench.load` (what is asked, and when), `client.bench.metrics` (the figures).
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from client.bench.load import (
    SHAREGPT_LEN,
    BenchRequest,
    Distribution,
    Lengths,
    Load,
    arrivals,
    make_requests,
    read_requests,
)
from client.bench.metrics import REFUSALS, RequestRecord, measure, report
from client.bench.targets import ResponsesTarget, stream_target
from client.client import Client
from client.errors import BadRequestError
from client.stream import Timeouts
from client.terminal import complain

_GOALS = ("ttft", "tpot", "e2el")


def add_bench_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench`."""
    parser.add_argument("--dialect", choices=("stream", "responses"), default="stream")
    parser.add_argument("--num-requests", type=int, help="default: 100, or all of a file")
    parser.add_argument("--request-rate", type=float, default=math.inf, help="requests/s, Poisson; inf: all at once")
    parser.add_argument("--max-concurrency", type=int, help="most requests running at a time")
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=["random"],
        metavar="NAME",
        help="random | sharegpt-like | file FILE ([{prompt_tokens, max_tokens}, ...])",
    )
    parser.add_argument("--input-len", type=int, help="mean prompt tokens (default: 128; sharegpt-like: 161)")
    parser.add_argument("--output-len", type=int, help="mean output tokens (default: 128; sharegpt-like: 338)")
    parser.add_argument(
        "--range-ratio", type=float, default=0.0, help="random lengths: mean * (1 - r) to mean * (1 + r)"
    )
    parser.add_argument("--vocab-size", type=int, default=30_000, help="random token ids are below this")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, lengths and arrivals")
    parser.add_argument("--temperature", type=float, default=0.0)
    exact = argparse.BooleanOptionalAction
    parser.add_argument("--ignore-eos", action=exact, default=True, help="exact output lengths (stream dialect)")
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="GOAL:MS", help="such as ttft:200 tpot:50 e2el:9000"
    )
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write the figures to a file")


async def run_bench(flags: argparse.Namespace) -> int:
    """Run the command; 0 if every request was answered or refused, else 1. Raises APIError."""
    goals = read_goals(flags.goodput)
    requests = _read_dataset(flags)
    if not flags.request_rate > 0:
        raise BadRequestError(f"--request-rate is {flags.request_rate:g}; it must be more than 0")
    timeouts = Timeouts(first_token_s=None, idle_s=None)
    async with Client(flags.url, flags.api_key, timeouts=timeouts, resume=False, max_retries=0) as client:
        await client.wait_until_ready(limit_s=flags.wait, say=complain)
        models = await client.models()
        records, duration_s = await _offer(flags, client, requests)
    figures = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "backend": f"tokenstage-{flags.dialect}",
        "model_id": models[0].id if models else "",
        "num_prompts": len(requests),
        "request_rate": flags.request_rate if math.isfinite(flags.request_rate) else "inf",
        "max_concurrency": flags.max_concurrency,
        **measure(records, duration_s=duration_s, goals=goals),
    }
    print(report(figures))
    if flags.save:
        flags.save.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return _tell_faults(records)


async def _offer(
    flags: argparse.Namespace, client: Client, requests: Sequence[BenchRequest]
) -> tuple[list[RequestRecord], float]:
    clock = time.perf_counter
    async with AsyncExitStack() as stack:
        if flags.dialect == "stream":
            await client.connect()
            ask = stream_target(client, temperature=flags.temperature, ignore_eos=flags.ignore_eos, clock=clock)
        else:
            ask = ResponsesTarget(client.endpoint, stack, temperature=flags.temperature, clock=clock).ask
        load = Load(ask, max_concurrency=flags.max_concurrency, clock=clock)
        start = clock()
        records = await load.offer(requests, arrivals(len(requests), flags.request_rate, seed=flags.seed))
        return records, clock() - start


def read_goals(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:200` to {"ttft": 200.0}, milliseconds. Raises BadRequestError."""
    goals = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            goals[name] = float(limit)
        except ValueError:
            name = ""
        if name not in _GOALS:
            raise BadRequestError(f"--goodput {text!r} is not of the form {'|'.join(_GOALS)}:MILLISECONDS")
    return goals


def _read_dataset(flags: argparse.Namespace) -> list[BenchRequest]:
    match flags.dataset:
        case ["random" | "sharegpt-like"]:
            requests = _draw_requests(flags)
        case ["file", path]:
            requests = read_requests(Path(path))[: flags.num_requests]
        case ["trace", *_]:
            raise BadRequestError(
                "--dataset trace is not supported by this version; use random, sharegpt-like or file FILE"
            )
        case other:
            known = " or ".join([*get_args(Distribution), "file FILE"])
            raise BadRequestError(f"--dataset {' '.join(other)}: give {known}")
    if not requests:
        raise BadRequestError("--num-requests is 0; it must be at least 1")
    return requests


def _draw_requests(flags: argparse.Namespace) -> list[BenchRequest]:
    (distribution,) = flags.dataset
    defaults = (128, 128) if distribution == "random" else SHAREGPT_LEN
    lengths = Lengths(
        input_len=flags.input_len or defaults[0],
        output_len=flags.output_len or defaults[1],
        range_ratio=flags.range_ratio,
    )
    if not 0 <= lengths.range_ratio < 1:
        raise BadRequestError(f"--range-ratio is {lengths.range_ratio:g}; it must be from 0 to below 1")
    if min(lengths.input_len, lengths.output_len) < 1 or flags.vocab_size < 2:
        raise BadRequestError("--input-len and --output-len must be at least 1, --vocab-size at least 2")
    num_requests = 100 if flags.num_requests is None else flags.num_requests
    return make_requests(distribution, lengths, num_requests=num_requests, vocab_size=flags.vocab_size, seed=flags.seed)


def _tell_faults(records: Sequence[RequestRecord]) -> int:
    faults: Counter[Any] = Counter((one.code, one.message) for one in records if one.code is not None)
    for (code, message), count in faults.most_common(5):
        complain(f"{count} x {code}: {message}")
    return int(any(code not in REFUSALS for code, _ in faults))
