"""The asyncio side of tokenstage: the node and its actors. Read `node.__main__`, then `node.supervision`."""
