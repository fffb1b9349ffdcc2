"""The KV pages of one group: who holds them, and which of them already hold the KV of which tokens.

`PagePool`: every page is free, cached or held, and the three add up to all. It never looks at tokens.

    free    nobody refers to it, its contents mean nothing
    cached  nobody refers to it, the prefix cache knows its contents; given up oldest first
    held    in `refs` page tables

`PrefixCache`: a chain of pages for each prompt prefix, shared by all who begin so. A page's key is its parent in the
chain plus its own token ids, and a look-up compares both in full: no hash collision can give one user another's page.
Chains of different `cache_salt` never meet. Who is let in with what was matched is decided in `group`.
"""

from collections import OrderedDict
from weakref import WeakValueDictionary


class PagePool:
    """Reference counts and the order of giving up; pages are `0 <= page < num_pages`. Every operation is O(1)."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first; a plain dict finds its first in O(removed)
        self._refs = [0] * num_pages
        self.num_available = num_pages
        """Pages that can be had without taking any from a request: free and cached ones."""
        self._kept = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        """Pages that mean nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that could be given up."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Pages in at least one page table."""
        return self.num_pages - self.num_available

    def refs(self, page: int) -> int:
        """How many page tables hold it."""
        return self._refs[page]

    def allocate(self) -> int:
        """Take a free page (IndexError when there is none: evict first)."""
        page = self._free.pop()
        self.num_available -= 1
        self._refs[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more page table refers to a cached or held page."""
        if not self._refs[page]:
            del self._cached[page]
            self.num_available -= 1
        self._refs[page] += 1

    def release(self, page: int) -> None:
        """One page table less. Release a table from its end, so that the cache gives up the end first."""
        self._refs[page] -= 1
        if not self._refs[page]:
            self.num_available += 1
            if self._kept[page]:
                self._cached[page] = None
            else:
                self._free.append(page)

    def keep(self, page: int) -> None:
        """The prefix cache knows this held page: when nobody holds it any more it becomes cached, not free."""
        self._kept[page] = True

    def forget(self, page: int) -> None:
        """The prefix cache no longer knows it."""
        self._kept[page] = False
        if not self._refs[page]:
            del self._cached[page]
            self._free.append(page)

    def is_kept(self, page: int) -> bool:
        """Whether the prefix cache knows it."""
        return bool(self._kept[page])

    def oldest_cached(self) -> int:
        """The page to give up next (StopIteration when none is cached)."""
        return next(iter(self._cached))

    def check(self, held: dict[int, int]) -> None:
        """Stop the part unless `held` (references of each page, counted over all page tables) explains every page."""
        states = sorted([*self._free, *self._cached, *held])
        if states != list(range(self.num_pages)) or self.num_held != len(held):
            raise AssertionError(
                f"{self.num_free} free + {self.num_cached} cached + {len(held)} held != {self.num_pages}"
            )
        wrong = {page: (self._refs[page], held.get(page, 0)) for page in range(self.num_pages)}
        wrong = {page: counts for page, counts in wrong.items() if counts[0] != counts[1]}
        if wrong:
            raise AssertionError(f"pages whose count differs from their tables' (count, tables): {wrong}")


class Node:
    """One page's meaning. The root of a salt holds no page (-1)."""

    __slots__ = ("__weakref__", "alive", "children", "key", "page", "parent")

    def __init__(self, parent: "Node | None", key: tuple[int, ...], page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[tuple[int, ...], Node] = {}
        self.alive = True


class PrefixCache:
    """Match, insert, evict. Switched off, it matches nothing and keeps nothing.

    Whoever holds a page holds its ancestors as well and releases the end first, so ends are given up before beginnings.
    Only two requests that computed the same page twice can break that; then a page takes its descendants out with it.
    """

    def __init__(self, pool: PagePool, page_size: int, *, enabled: bool = True) -> None:
        self._pool = pool
        self._page_size = page_size
        self._enabled = enabled
        self._roots: WeakValueDictionary[str, Node] = (
            WeakValueDictionary()
        )  # a root lives while a node or request refers to it
        self._nodes: list[Node | None] = [None] * pool.num_pages

    def match(self, tokens: list[int], cache_salt: str, last: tuple[Node, int] | None = None) -> tuple[Node, int]:
        """The longest known chain for `tokens`: its last node and its number of pages.

        The last token is left out, since its logits are wanted. `last` is an earlier answer for the same tokens to go
        on from. O(pages newly matched).
        """
        root = self._roots.get(cache_salt)
        if root is None:
            root = self._roots[cache_salt] = Node(None, (), -1)
        node, depth = last if last and last[0].alive else (root, 0)
        size = self._page_size
        limit = (len(tokens) - 1) // size
        while depth < limit:
            child = node.children.get(tuple(tokens[depth * size : (depth + 1) * size]))
            if child is None:
                break
            node = child
            depth += 1
        return node, depth

    def insert(self, parent: Node, key: tuple[int, ...], page: int) -> Node | None:
        """Say that a held page continues `parent` by `key`; the first to say so is kept. None: the chain is broken."""
        if not (self._enabled and parent.alive):
            return None
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(parent, key, page)
            self._nodes[page] = node
            self._pool.keep(page)
        return node

    def evict(self) -> None:
        """Give up the least recently used page."""
        node = self._nodes[self._pool.oldest_cached()]
        if node is None or node.parent is None:
            raise AssertionError("a cached page has no meaning")
        del node.parent.children[node.key]
        self._forget(node)

    def allocate(self) -> int:
        """A page to write into, by eviction if need be."""
        if not self._pool.num_free:
            self.evict()
        return self._pool.allocate()

    def chain(self, node: Node) -> list[int]:
        """Pages from the beginning to `node`."""
        pages = []
        while node.parent is not None:
            pages.append(node.page)
            node = node.parent
        pages.reverse()
        return pages

    def check(self) -> None:
        """Stop the part unless every page with a meaning can be found from its root, and is kept by the pool."""
        for page, node in enumerate(self._nodes):
            if (node is not None) != self._pool.is_kept(page):
                raise AssertionError(f"pool and prefix cache disagree whether page {page} means anything")
            if node is not None and not (node.alive and node.page == page and _is_linked(node)):
                raise AssertionError(f"page {page} cannot be found by its tokens")

    def _forget(self, node: Node) -> None:
        """Take out a node and all below it; each node is taken out once, so the cost is paid by its insertion."""
        nodes = [node]
        while nodes:
            node = nodes.pop()
            node.alive = False
            self._nodes[node.page] = None
            self._pool.forget(node.page)
            nodes.extend(node.children.values())
            node.children = {}  # no reference cycles, so that roots go at once


def _is_linked(node: Node) -> bool:
    return node.parent is not None and node.parent.alive and node.parent.children.get(node.key) is node
