"""Plans steps by hand for one device: scattered pages, requests in slots, logits kept for every sampled token."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cuda.devices.device import DeviceConfig, PoolInfo
from protocol.sampling import SamplingParams
from protocol.step import RowStart, SampledRow, StepPlan, StepResult, StepRow
from tests.cuda.devices.shown import ShownCpuDevice

GREEDY = SamplingParams(max_tokens=1, temperature=0, seed=0)


def config_for(folder: Path, **overrides: Any) -> DeviceConfig:
    fields: dict[str, Any] = {
        "folder": str(folder),
        "dtype": "auto",
        "page_size": 16,
        "num_pages": 64,
        "kv_memory": None,
        "max_running": 8,
        "max_model_len": 256,
        "max_step_tokens": 1024,
        "quantization": "none",
        "batch_invariant": False,
        "num_threads": 2,
        "peer_timeout_s": 10.0,
    }
    return DeviceConfig(**{**fields, **overrides})


class Steps(Protocol):
    """What is driven: a device, or a group of them."""

    @property
    def logits(self) -> Any: ...
    def load(self, progress: Callable[[float], None]) -> PoolInfo: ...
    def execute(self, plan: StepPlan) -> StepResult: ...
    def close(self) -> None: ...


class Driver:
    """One loaded device and where each of its slots stands."""

    def __init__(self, config: DeviceConfig, device: Steps | None = None) -> None:
        self.device: Steps = ShownCpuDevice(config) if device is None else device
        self.pool = self.device.load(lambda _done: None)
        self._page_size = config.page_size
        self._free = list(range(self.pool.num_pages))[::-2] + list(range(self.pool.num_pages))[-2::-2]
        self.pages: dict[int, list[int]] = {}
        self._starts: list[RowStart] = []
        self._step = 0

    def start(
        self,
        slot: int,
        tokens: Sequence[int],
        *,
        output: Sequence[int] = (),
        sampling: SamplingParams = GREEDY,
        shared_pages: Sequence[int] = (),
    ) -> None:
        """Take a slot; `shared_pages` hold the first tokens already."""
        self._free += [page for page in self.pages.pop(slot, []) if page not in self._free]
        self.pages[slot] = list(shared_pages)
        self._shared = {**getattr(self, "_shared", {}), slot: tuple(shared_pages)}
        self._starts.append(RowStart(slot, 100 + slot, 1, [*tokens, *output], len(tokens), sampling))

    def step(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[SampledRow]:
        """Run (slot, start, count, samples) rows."""
        planned = []
        for slot, start, count, samples in rows:
            new = list(self._shared.pop(slot, ()))
            while len(self.pages[slot]) * self._page_size < start + count:
                new.append(self._free.pop())
                self.pages[slot].append(new[-1])
            planned.append(StepRow(slot, start, count, samples, tuple(new)))
        self._step += 1
        result = self.device.execute(StepPlan(1, self._step, self._starts, planned))
        self._starts = []
        assert (result.epoch, result.step) == (1, self._step)
        return result.rows

    def generate(self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int = 10_000) -> dict[int, Any]:
        """Greedy continuation of all prompts together: per slot (tokens, [logits of each]). Prefill in chunks."""
        for slot, prompt in prompts.items():
            self.start(slot, prompt)
        done = dict.fromkeys(prompts, 0)
        found: dict[int, Any] = {slot: ([], []) for slot in prompts}
        while any(len(tokens) < count for tokens, _ in found.values()):
            rows = []
            for slot, prompt in prompts.items():
                if len(found[slot][0]) < count:
                    size = min(chunk, max(1, len(prompt) - done[slot]))
                    rows.append((slot, done[slot], size, done[slot] + size >= len(prompt)))
                    done[slot] += size
            for sampled, logits in zip(self.step(rows), self.device.logits, strict=True):
                found[sampled.slot][0].append(sampled.token)
                found[sampled.slot][1].append(logits)
        return found

    def close(self) -> None:
        self.device.close()
