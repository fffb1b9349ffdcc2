"""The stock `openai` package, unmodified, over a WebSocket: `python examples/openai_responses.py [http://host:port]`."""

import asyncio
import sys

from openai import AsyncOpenAI


async def main(url: str) -> None:
    """Ask, stream the answer, ask again in the same conversation."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as openai, openai.responses.connect() as connection:
        previous: str | None = None
        for question in ("What is the capital of France?", "And of Italy?"):
            await connection.response.create(
                model="demo", input=question, previous_response_id=previous, max_output_tokens=32, temperature=0
            )
            async for event in connection:
                if event.type == "response.output_text.delta":
                    print(event.delta, end="", flush=True)
                elif event.type in ("response.completed", "response.incomplete"):
                    previous = event.response.id
                    print(f"\n[{event.response.status}]")
                    break
                elif event.type in ("response.failed", "error"):
                    raise SystemExit(f"failed: {event}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765"))
