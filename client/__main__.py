"""`python -m client`: chat, generate, models, bench. Read `client.chat` or `client.bench.run` next."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from client.bench.run import add_bench_flags, run_bench
from client.chat import run_chat
from client.client import Client
from client.errors import APIError, BadRequestError
from client.fields import add_sampling_flags, flag_settings
from client.terminal import Screen, complain

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 failed, 2 usage, 130 interrupted."""
    flags = _parser().parse_args(arguments)
    try:
        return asyncio.run(_run(flags))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; the last flush must not fail
        return EXIT_FAILED
    except (APIError, OSError) as error:
        complain(f"error: {error}")
        return EXIT_USAGE if isinstance(error, BadRequestError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def _run(flags: argparse.Namespace) -> int:
    match flags.command:
        case "chat":
            return await run_chat(flags)
        case "generate":
            return await _run_generate(flags)
        case "bench":
            return await run_bench(flags)
        case _:
            return await _run_models(flags)


async def _run_generate(flags: argparse.Namespace) -> int:
    """One generation, streamed to standard output, or as JSON when it is done."""
    fields = flag_settings(flags) | {"ignore_eos": flags.ignore_eos, "logprobs": flags.logprobs}
    text = await asyncio.to_thread(sys.stdin.read) if flags.prompt == "-" else flags.prompt
    if flags.chat:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    async with Client(flags.url, flags.api_key) as client:
        await client.wait_until_ready(limit_s=flags.wait, say=complain)
        if flags.json:
            print(msgspec.json.encode(await client.generate(**fields)).decode())
        else:
            await Screen().show(client.stream(**fields))
    return 0


async def _run_models(flags: argparse.Namespace) -> int:
    async with Client(flags.url, flags.api_key) as client:
        for model in await client.models():
            print(f"{model.id}\tmax_model_len {model.max_model_len}")
    return 0


class _Parser(argparse.ArgumentParser):
    """A mistake is one line that names what is wrong; the usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m client", description="Talk to a tokenstage server.")
    commands = parser.add_subparsers(dest="command", required=True)

    chat = commands.add_parser("chat", help="talk with the model; piped standard input is asked once")
    _add_connection_flags(chat, wait_s=120)
    chat.add_argument("--system", default="", help="system prompt")
    add_sampling_flags(chat)

    generate = commands.add_parser("generate", help="generate after one prompt")
    _add_connection_flags(generate, wait_s=0)
    generate.add_argument("prompt", help="text to go on with; - reads standard input")
    generate.add_argument("--chat", action="store_true", help="send it as a user's message, through the chat template")
    generate.add_argument("--json", action="store_true", help="print the whole result as one JSON object at the end")
    generate.add_argument("--ignore-eos", action="store_true", help="go on past the end of sequence")
    generate.add_argument(
        "--logprobs", type=int, help="report log-probabilities and so many alternatives (with --json)"
    )
    add_sampling_flags(generate)

    _add_connection_flags(commands.add_parser("models", help="list the served models"), wait_s=0)

    bench = commands.add_parser("bench", help="offer load and measure")
    _add_connection_flags(bench, wait_s=0)
    add_bench_flags(bench)
    return parser


def _add_connection_flags(parser: argparse.ArgumentParser, *, wait_s: float) -> None:
    url = os.environ.get("TOKENSTAGE_URL", "ws://127.0.0.1:8765")
    parser.add_argument("--url", default=url, help="the server (default: %(default)s, or TOKENSTAGE_URL)")
    key = os.environ.get("TOKENSTAGE_API_KEY")
    parser.add_argument("--api-key", default=key, help="its API key (default: TOKENSTAGE_API_KEY)")
    parser.add_argument(
        "--wait",
        type=float,
        default=wait_s,
        help="seconds to wait for a server that is starting (default: %(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
