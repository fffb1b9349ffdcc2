"""How large a KV pool is: bytes of a page, and how many pages a device takes when nobody said.

Layout of a layer: `[page, 2, kv_head, slot, head_dim]`, keys before values; one allocation a layer, by the device.
"""

from dataclasses import dataclass
from pathlib import Path

from cuda.models.spec import ModelSpec

FREE_MEMORY_SHARE = 0.25
"""Of the host's available memory, when a pool sizes itself."""
GPU_MEMORY_SHARE = 0.9
"""Of what weights and buffers leave free on a GPU: the rest is for the driver and for others on it."""


@dataclass(frozen=True)
class KvLayout:
    """Shape of a pool without its number of pages."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    item_bytes: int
    """4 for float32, 2 for bfloat16."""

    @classmethod
    def of(cls, spec: ModelSpec, page_size: int, item_bytes: int) -> "KvLayout":
        """The layout of a whole model."""
        return cls(spec.num_layers, spec.num_kv_heads, spec.head_dim, page_size, item_bytes)

    def shape(self, num_pages: int) -> tuple[int, int, int, int, int]:
        """One layer's pool."""
        return num_pages, 2, self.num_kv_heads, self.page_size, self.head_dim

    @property
    def page_values(self) -> int:
        """Values of a page in one layer."""
        return 2 * self.num_kv_heads * self.page_size * self.head_dim

    @property
    def page_bytes(self) -> int:
        """Bytes of a page over all layers."""
        return self.num_layers * self.page_values * self.item_bytes


@dataclass(frozen=True)
class PoolRequest:
    """What the configuration says about the pool's size."""

    num_pages: int | None
    kv_memory: int | None
    """Bytes."""
    max_tokens: int
    """No more than this many tokens can ever be held at once."""


def choose_num_pages(
    layout: KvLayout, request: PoolRequest, available_bytes: int, share: float = FREE_MEMORY_SHARE
) -> int:
    """Pages of a pool, which takes `share` of what is available if nobody said; ValueError if not even one fits."""
    if request.num_pages is not None:
        pages = request.num_pages
    elif request.kv_memory is not None:
        pages = request.kv_memory // layout.page_bytes
    else:
        useful = -(-request.max_tokens // layout.page_size)
        pages = min(int(available_bytes * share) // layout.page_bytes, useful)
    if pages < 1:
        given = request.kv_memory if request.kv_memory is not None else int(available_bytes * share)
        raise ValueError(f"a KV page needs {layout.page_bytes} bytes; the pool was given {given}")
    return pages


def available_memory() -> int:
    """Bytes that can be taken without swapping (Linux's MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")
