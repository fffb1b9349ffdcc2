"""How much device memory the KV pool takes, and what is said when there is not enough."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cuda.devices.device import DeviceConfig
from cuda.models.kv import KvLayout, PoolRequest, choose_num_pages
from protocol.errors import PartFailed

POOL_SHARE = 0.9
"""Of what weights and buffers leave free: the rest is for the driver and for others on the same GPU."""
WORKSPACE_BYTES = 256 << 20
"""Kept free for what the matrix library allocates at its first calls, and for captured graphs."""


@contextmanager
def memory_for(what: str, *settings: str) -> Iterator[None]:
    """Turn the lack of memory inside into one line that names what to lower."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PartFailed(f"not enough device memory for {what}; lower {' or '.join(settings)}") from error


def pool_pages(config: DeviceConfig, layout: KvLayout, free_bytes: int) -> int:
    """Pages of the pool, of `free_bytes` that can still be had. PartFailed if not even one fits."""
    request = PoolRequest(config.num_pages, config.kv_memory, config.max_running * config.max_model_len)
    try:
        return choose_num_pages(layout, request, max(0, free_bytes - WORKSPACE_BYTES), POOL_SHARE)
    except ValueError as error:
        mend = "lower --max-running, --step-tokens or --dtype" if config.kv_memory is None else "raise --kv-memory"
        raise PartFailed(f"no device memory for the KV pool: {error}; {mend}") from error
