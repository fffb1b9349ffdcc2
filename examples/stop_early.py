"""Leave a stream when you have seen enough: `python examples/stop_early.py [ws://host:port]`."""

import asyncio
import sys

from client import Client


async def main(url: str) -> None:
    """Stop an endless answer after one sentence; leaving the block cancels it on the server."""
    async with Client(url) as client:
        async with client.stream(prompt="Once upon a time", max_tokens=500, ignore_eos=True, seed=1) as stream:
            async for text in stream:
                print(text, end="", flush=True)
                if "." in text:
                    break
        print(f"\n[{stream.result.finish_reason} after {stream.result.num_tokens} tokens]")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765"))
