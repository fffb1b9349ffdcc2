"""Whether GPUs that share a model reach each other's memory: proven before workers start, pair by pair and by a sum.

Groups that do not exchange through the library, which is slower; a line says why. Read `cuda.check.peers.proof`.
"""

from collections.abc import Callable, Sequence

import structlog

from actors.node.config import NodeConfig
from cuda.check.peers.proof import prove, prove_sum, verdict

log = structlog.get_logger()


def hindrance_of(devices: Sequence[str]) -> str | None:
    """Return None if all devices of a group are fit, else the line that says why not."""
    return verdict(prove(devices)) or prove_sum(devices)


def unfit_groups(
    config: NodeConfig, hindrance_of: Callable[[Sequence[str]], str | None] = hindrance_of
) -> frozenset[int]:
    """Return which groups of GPUs cannot exchange through each other's memory, each logged with its reason."""
    unfit = set()
    for index, group in enumerate(config.groups):
        if group.size > 1 and group.devices[0].startswith("cuda"):
            hindrance = hindrance_of(group.devices)
            if hindrance is not None:
                log.warning(hindrance, group=index)
                unfit.add(index)
    return frozenset(unfit)
