"""How the model is shared out over the ranks of each group: what cannot be is refused before any worker starts.

What a shard is: `cuda.models.shard`. Counting devices have no model to share out. GPUs of a group prove that they reach
each other's memory, pair by pair and by a sum (`cuda.check.peers.proof`); where they do not, they exchange through
the library, which is slower.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog

from actors.node.config import NodeConfig
from actors.node.devices import Group
from actors.node.settings import ConfigError
from cuda.check.peers.proof import prove, prove_sum, verdict
from cuda.devices.host import available_memory
from cuda.models.folder import read_spec
from cuda.models.kv import KvLayout
from cuda.models.shard import describe, split
from cuda.models.spec import ModelSpec, UnsupportedModel
from protocol.model_info import ModelInfo

log = structlog.get_logger()


def check_groups(config: NodeConfig, model: ModelInfo) -> None:
    """Show how the model is shared out. Raises ConfigError if a rank would hold nothing, or a pool cannot be."""
    spec = read_spec(Path(model.folder))
    show(config, spec)
    _check_pools(config, spec)


def show(config: NodeConfig, spec: ModelSpec) -> None:
    """Log what each rank of a group of several holds. Raises ConfigError if one would hold nothing."""
    try:
        lines = [(index, text) for index, group in _shared(config) for text in describe(split(spec, group.size))]
    except UnsupportedModel as error:
        raise ConfigError(f"--tp: {error}; use fewer devices in a group") from None
    for index, text in lines:
        log.info(text, group=index)


def kv_memory(config: NodeConfig, spec: ModelSpec) -> list[int | None]:
    """Return the bytes of each worker's part of its group's KV pool, by its KV heads; None where nobody said."""
    given = config.device.kv_memory
    by_worker: list[int | None] = [given] * len(config.devices)
    if given is None:
        return by_worker
    for index, group in _shared(config):
        first = sum(earlier.size for earlier in config.groups[:index])
        parts = page_bytes(config, spec, group.size)
        by_worker[first : first + group.size] = [given * part // sum(parts) for part in parts]
    return by_worker


def page_bytes(config: NodeConfig, spec: ModelSpec, world_size: int) -> list[int]:
    """Return the bytes of a KV page on each rank."""
    parts = [shard.spec(spec) for shard in split(spec, world_size)]
    return [KvLayout.of(local, config.device.page_size, item_bytes(config)).page_bytes for local in parts]


def item_bytes(config: NodeConfig) -> int:
    """Return the bytes of a value in the KV pool, as far as the settings say."""
    return 2 if config.device.dtype == "bfloat16" else 4


def hindrance_of(devices: Sequence[str]) -> str | None:
    """Return None if all GPUs of a group reach each other's memory, else the line that says why not."""
    return verdict(prove(devices)) or prove_sum(devices)


def unfit_groups(
    config: NodeConfig, hindrance_of: Callable[[Sequence[str]], str | None] = hindrance_of
) -> frozenset[int]:
    """Return which groups of GPUs cannot exchange through each other's memory, each logged with its reason."""
    unfit = set()
    for index, group in _shared(config):
        if group.devices[0].startswith("cuda") and (hindrance := hindrance_of(group.devices)) is not None:
            log.warning(hindrance, group=index)
            unfit.add(index)
    return frozenset(unfit)


def _check_pools(config: NodeConfig, spec: ModelSpec) -> None:
    """Refuse a pool that was asked for and holds no page, or does not fit into memory beside those of the others."""
    given_pages, given_bytes = config.device.num_pages, config.device.kv_memory
    groups = [group for group in config.groups if group.devices[0].startswith("cpu")]
    if not groups or (given_pages is None and given_bytes is None):
        return
    needed = max(sum(page_bytes(config, spec, group.size)) for group in groups)
    setting = "--num-pages" if given_bytes is None else "--kv-memory"
    num_pages = given_pages if given_bytes is None else given_bytes // needed
    if not num_pages:
        raise ConfigError(f"{setting}: {given_bytes} bytes hold no page; use {needed} or more")
    available = available_memory() // len(groups)
    if num_pages * needed > available:
        most = available // needed if given_bytes is None else available
        raise ConfigError(
            f"{setting}: {num_pages * needed:,} bytes for each KV pool are more than the free memory; "
            f"use less than {most}"
        )


def _shared(config: NodeConfig) -> Iterator[tuple[int, Group]]:
    """Index and group of those whose ranks hold a part of the model each."""
    return (
        (index, group)
        for index, group in enumerate(config.groups)
        if group.size > 1 and not group.devices[0].startswith("counting")
    )
