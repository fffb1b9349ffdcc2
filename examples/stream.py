"""Print an answer as it is written: `python examples/stream.py [ws://host:port]`."""

import asyncio
import sys

from client import Client


async def main(url: str) -> None:
    """Ask one question."""
    async with Client(url) as client:
        question = [{"role": "user", "content": "Name three rivers in France."}]
        async with client.stream(messages=question, max_tokens=48, temperature=0) as stream:
            async for text in stream:
                print(text, end="", flush=True)
    result = stream.result
    print(f"\n[{result.finish_reason}, {result.usage.completion_tokens} tokens, TTFT {result.timing.ttft_ms:.0f} ms]")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765"))
