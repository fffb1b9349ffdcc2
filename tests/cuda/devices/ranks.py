"""Drives the ranks of one group as threads of this process: the same plans for all, results compared."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from cuda.devices.device import Device, DeviceConfig, PoolInfo
from protocol.step import StepPlan, StepResult
from tests.cuda.devices.driver import Driver
from tests.cuda.devices.shown import ShownCpuDevice

T = TypeVar("T")


class RankDevice(Device, Protocol):
    """One rank's."""

    @property
    def logits(self) -> Any: ...


class GroupDevice:
    """Looks like one device to a `Driver`."""

    def __init__(
        self,
        config: DeviceConfig,
        world_size: int,
        *,
        num_threads: int = 1,
        make: Callable[[DeviceConfig], RankDevice] = ShownCpuDevice,
    ) -> None:
        shared = replace(config, world_size=world_size, num_threads=num_threads)
        configs = [replace(shared, rank=rank) for rank in range(world_size)]
        self.pools: list[PoolInfo] = []
        self.ranks = [make(own) for own in configs]
        self._threads = [ThreadPoolExecutor(1) for _ in configs]

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        self.pools = self.on_all(lambda rank: rank.load(progress))
        handles = self.on_all(lambda rank: rank.export())
        self.on_all(lambda rank: rank.open_peers(handles))
        return self.pools[0]

    def execute(self, plan: StepPlan) -> StepResult:
        results = self.on_all(lambda rank: rank.execute(plan))
        logits = [rank.logits for rank in self.ranks]
        for result, seen in zip(results, logits, strict=True):
            assert result.rows == results[0].rows
            np.testing.assert_array_equal(seen, logits[0])
        return results[0]

    @property
    def logits(self) -> Any:
        return self.ranks[0].logits

    def on_all(self, call: Callable[[RankDevice], T]) -> list[T]:
        """Each rank on its own thread, all at once."""
        futures = [thread.submit(call, rank) for thread, rank in zip(self._threads, self.ranks, strict=True)]
        return [future.result() for future in futures]

    def close(self) -> None:
        self.on_all(lambda rank: rank.close())
        for thread in self._threads:
            thread.shutdown()


def group_driver(config: DeviceConfig, world_size: int) -> Driver:
    """A driver of `world_size` ranks."""
    return Driver(config, GroupDevice(config, world_size))


def greedy(driver: Driver, prompts: Mapping[int, Sequence[int]], count: int, chunk: int = 10_000) -> dict[int, Any]:
    """Greedy tokens of each slot and their logits [count, V]; closes the driver."""
    found = driver.generate(prompts, count, chunk)
    driver.close()
    return {slot: (tokens, np.array(logits)) for slot, (tokens, logits) in found.items()}
