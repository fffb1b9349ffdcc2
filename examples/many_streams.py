"""Many generations at once over one socket: `python examples/many_streams.py [ws://host:port]`."""

import asyncio
import sys

from client import Client

COUNTRIES = ("France", "Italy", "Spain", "Japan", "Egypt", "Canada", "Peru", "India")


async def main(url: str) -> None:
    """Finish a sentence for every country; the server runs them in one batch."""
    async with Client(url) as client, asyncio.TaskGroup() as tasks:
        for country in COUNTRIES:
            tasks.create_task(complete(client, f"The capital of {country} is"))


async def complete(client: Client, prompt: str) -> None:
    """Print one continuation when it is done."""
    result = await client.generate(prompt=prompt, max_tokens=8, temperature=0)
    first_line, _, _ = result.text.partition("\n")
    print(prompt + first_line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765"))
