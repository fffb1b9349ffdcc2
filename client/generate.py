"""`python -m client generate PROMPT`: one generation, streamed to standard output, or as JSON when it is done."""

import argparse
import asyncio
import sys

import msgspec

from client.client import Client
from client.fields import GenerateFields
from client.readiness import wait_until_ready
from client.sampling_settings import flag_settings
from client.terminal import Screen, complain
from protocol.wire import ChatMessage


async def run_generate(flags: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises APIError."""
    text = await asyncio.to_thread(sys.stdin.read) if flags.prompt == "-" else flags.prompt
    fields: GenerateFields = {**flag_settings(flags), "ignore_eos": flags.ignore_eos}  # type: ignore[typeddict-item] # checked there
    if flags.logprobs is not None:
        fields["logprobs"] = flags.logprobs
    if flags.chat:
        fields["messages"] = [ChatMessage(role="user", content=text)]
    else:
        fields["prompt"] = text
    async with Client(flags.url, flags.api_key) as client:
        await wait_until_ready(client, limit_s=flags.wait, say=complain)
        if flags.json:
            result = await client.generate(**fields)
            print(msgspec.json.encode(result).decode())
        else:
            await _print_stream(client, fields)
    return 0


async def _print_stream(client: Client, fields: GenerateFields) -> None:
    async with client.stream(**fields) as stream:
        await Screen().stream(stream)
