"""How the model is shared out over the ranks of each group: refused before any worker starts, or shown.

What a shard is: `cuda.models.shard`. Counting devices have no model to share out.
"""

from collections.abc import Iterator

import structlog

from actors.node.config import NodeConfig
from actors.node.devices import Group
from actors.node.settings import ConfigError
from cuda.models.kv import KvLayout
from cuda.models.shard import describe, split
from cuda.models.spec import ModelSpec, UnsupportedModel

log = structlog.get_logger()


def show(config: NodeConfig, spec: ModelSpec) -> None:
    """Log what each rank of a group of several holds. Raises ConfigError if one would hold nothing."""
    lines: dict[int, tuple[str, ...]] = {}
    for index, group in _shared(config):
        try:
            lines[index] = describe(split(spec, group.size))
        except UnsupportedModel as error:
            raise ConfigError(f"--tp: {error}; use fewer devices in a group") from None
    for index, texts in lines.items():
        for text in texts:
            log.info(text, group=index)


def kv_memory(config: NodeConfig, spec: ModelSpec) -> list[int | None]:
    """Return the bytes of each worker's part of its group's KV pool, by its KV heads; None where nobody said."""
    given = config.kv_memory
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
    item_bytes = 2 if config.dtype == "bfloat16" else 4
    parts = [shard.spec(spec) for shard in split(spec, world_size)]
    return [KvLayout.of(local, config.page_size, item_bytes).page_bytes for local in parts]


def _shared(config: NodeConfig) -> Iterator[tuple[int, Group]]:
    """Index and group of those whose ranks hold a part of the model each."""
    return (
        (index, group)
        for index, group in enumerate(config.groups)
        if group.size > 1 and not group.devices[0].startswith("counting")
    )
