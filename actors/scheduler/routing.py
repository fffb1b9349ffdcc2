"""Which group serves a request: the one that has least to compute before it, counting what its prefix cache spares.

A request stays in its group. Cost in tokens: the part of the prompt not cached there, the prompts waiting there, and
for every request running or waiting a share of the steps, since it slows the others by about its row.
"""

from collections.abc import Sequence

from actors.scheduler.group import GroupState
from actors.scheduler.prefix_cache import Node

ROW_COST = 64
"""Prompt tokens that one more row of decoding weighs: a new request meets about that many of its steps."""


def choose_group(
    groups: Sequence[GroupState], tokens: list[int], cache_salt: str
) -> tuple[GroupState, tuple[Node, int]]:
    """The cheapest group (ties: the first) and how far its prefix cache goes."""
    matches = {group.index: group.cache.match(tokens, cache_salt) for group in groups}

    def cost(group: GroupState) -> int:
        missing = len(tokens) - matches[group.index][1] * group.page_size
        begun = sum(request.length - request.num_computed for request in group.prefilling.values())
        return missing + begun + group.num_waiting_tokens + ROW_COST * (group.num_running + group.num_waiting)

    group = min(groups, key=cost)
    return group, matches[group.index]
