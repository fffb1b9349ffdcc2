"""The asyncio side of tokenstage: the node and its actors. Read `node`, then `system`."""
