"""The KV pages of one group: who may write where. Every page is free, cached or held, and the three add up to all.

    free    nobody refers to it, its contents mean nothing
    cached  nobody refers to it, the prefix cache knows its contents; given up oldest first
    held    in `refs` page tables

Every operation is O(1). It never looks at tokens: see `prefix_cache`, which decides what is worth keeping.
"""

from collections import OrderedDict


class PagePool:
    """Reference counts and the order of giving up; pages are `0 <= page < num_pages`."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first; a plain dict finds its first in O(removed)
        self._refs = [0] * num_pages
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
        return self.num_pages - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking any from a request."""
        return len(self._free) + len(self._cached)

    def refs(self, page: int) -> int:
        """How many page tables hold it."""
        return self._refs[page]

    def allocate(self) -> int:
        """Take a free page (IndexError when there is none: evict first)."""
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more page table refers to a cached or held page."""
        if not self._refs[page]:
            del self._cached[page]
        self._refs[page] += 1

    def release(self, page: int) -> None:
        """One page table less. Release a table from its end, so that the cache gives up the end first."""
        self._refs[page] -= 1
        if not self._refs[page]:
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
        if states != list(range(self.num_pages)):
            raise AssertionError(
                f"{self.num_free} free + {self.num_cached} cached + {len(held)} held != {self.num_pages}"
            )
        wrong = {page: (self._refs[page], held.get(page, 0)) for page in range(self.num_pages)}
        wrong = {page: counts for page, counts in wrong.items() if counts[0] != counts[1]}
        if wrong:
            raise AssertionError(f"pages whose count differs from their tables' (count, tables): {wrong}")
