"""The wire itself, with any WebSocket library: `python examples/raw_websocket.py [ws://host:port]`."""

import asyncio
import json
import sys

from websockets.asyncio.client import connect


async def main(url: str) -> None:
    """Send one `generate`, print the text of its `tokens` until `finished` or `failed`."""
    async with connect(f"{url}/v1/stream", subprotocols=["tokenstage.v1.json"], proxy=None) as socket:  # type: ignore[list-item] # str is fine
        hello = json.loads(await socket.recv())
        print(f"{hello['server']} serves {', '.join(hello['models'])}")
        await socket.send(json.dumps({"type": "generate", "id": "1", "prompt": "One, two, three,", "max_tokens": 8}))
        async for frame in socket:
            event = json.loads(frame)
            if event["type"] == "tokens":
                print(event["text"], end="", flush=True)
            elif event["type"] in ("finished", "failed"):
                print(f"\n{event}")
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765"))
