"""A device without a model: its next token is a checksum of the whole context, read back out of its own paged KV pool.

So a wrong page, stale KV, a missing chunk or a foreign page shows as a wrong token, while a right one is known before
(`expected_output`). Used by simulations, and by load tests as a device that costs nothing or only sleeps. The pool
holds `position << 32 | token` where a model keeps keys and values. It knows no sampling: seed, stop ids and min_tokens
are the scheduler's or a real device's business.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cuda.devices.device import DeviceConfig, PoolInfo
from protocol.step import RowStart, SampledRow, StepPlan, StepResult, StepRow, TokenLogprob, TopLogprob

DEFAULT_NUM_PAGES = 4096
ENTRY_BYTES = 8
EMPTY = -1


def expected_output(prompt: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The first `num_tokens` output tokens after `prompt`."""
    tokens = list(prompt)
    checksum = 0
    done = 0
    for _ in range(num_tokens):
        checksum = crc32(_entries(done, tokens[done:]).tobytes(), checksum)
        done = len(tokens)
        tokens.append(checksum % vocab_size)
    return tokens[len(prompt) :]


class CountingDevice:
    """Follows `cuda.devices.device.Device`. A plan that breaks the rules of `protocol.step` raises ValueError."""

    def __init__(
        self,
        config: DeviceConfig,
        step_s: float | Callable[[StepPlan], float] = 0.0,
        *,
        vocab_size: int | None = None,
    ) -> None:
        """`step_s`: how long a step takes, or a function of its plan; `vocab_size` None: from the folder's config."""
        self._config = config
        self._step_s = step_s
        self._vocab_size = vocab_size or 0
        self._pool: NDArray[np.int64] = np.empty((0, config.page_size), np.int64)
        self._slots: dict[int, _Slot] = {}

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        """Make the pool: as many pages as the configuration says."""
        config = self._config
        if not self._vocab_size:
            self._vocab_size = json.loads(Path(config.folder, "config.json").read_text("utf-8"))["vocab_size"]
        page_bytes = config.page_size * ENTRY_BYTES
        num_pages = config.num_pages or (config.kv_memory or DEFAULT_NUM_PAGES * page_bytes) // page_bytes
        self._pool = np.full((num_pages, config.page_size), EMPTY, np.int64)
        progress(1.0)
        return PoolInfo(num_pages, config.page_size, 0, self._pool.nbytes)

    def export(self) -> bytes:
        """See `Device`; a rank of a group has no memory to show, so its handle only says which rank it is."""
        return b"" if self._config.world_size == 1 else _handle(self._config.rank)

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """ValueError unless these are the handles of all ranks, in order."""
        world_size = self._config.world_size
        expected = [b""] if world_size == 1 else [_handle(rank) for rank in range(world_size)]
        if list(handles) != expected:
            raise ValueError(f"handles {list(handles)!r}; expected {expected!r}")

    def execute(self, plan: StepPlan) -> StepResult:
        """Store the plan's tokens in their pages, then read each sampling row's context back for its next token."""
        began = time.perf_counter()
        seconds = self._step_s(plan) if callable(self._step_s) else self._step_s
        for start in plan.starts:
            self._start(start)
        for row in plan.rows:
            self._store(row)
        sampled = [self._sample(row) for row in plan.rows if row.samples]
        if seconds:
            time.sleep(max(0.0, began + seconds - time.perf_counter()))  # the work above is part of the step
        return StepResult(plan.epoch, plan.step, sampled, seconds)

    def close(self) -> None:
        """Free the pool."""
        self._pool = np.empty((0, self._config.page_size), np.int64)
        self._slots.clear()

    def _start(self, start: RowStart) -> None:
        if not 0 <= start.slot < self._config.max_running:
            raise ValueError(f"slot {start.slot}; there are {self._config.max_running}")
        self._slots[start.slot] = _Slot(start)

    def _store(self, row: StepRow) -> None:
        slot = self._slots[row.slot]
        slot.table.extend(row.new_pages)
        end = row.start + row.count
        if row.count < 1 or (slot.num_computed is not None and row.start != slot.num_computed):
            raise ValueError(f"slot {row.slot} has {slot.num_computed} tokens computed, the row begins at {row.start}")
        if end > len(slot.tokens) or end > len(slot.table) * self._config.page_size:
            raise ValueError(
                f"slot {row.slot}: {len(slot.tokens)} tokens, {len(slot.table)} pages, the row ends at {end}"
            )
        slot.num_computed = end
        positions = np.arange(row.start, end)
        pages = np.asarray(slot.table, np.int64)[positions // self._config.page_size]
        self._pool[pages, positions % self._config.page_size] = _entries(row.start, slot.tokens[row.start : end])

    def _sample(self, row: StepRow) -> SampledRow:
        slot = self._slots[row.slot]
        end = row.start + row.count
        if end != len(slot.tokens):
            raise ValueError(f"slot {row.slot} has {len(slot.tokens)} tokens, the row samples at {end}")
        context = self._pool[slot.table].reshape(-1)[:end]
        token = crc32(context.tobytes()) % self._vocab_size
        slot.tokens.append(token)
        return SampledRow(row.slot, slot.request, slot.incarnation, token, _logprob(slot.num_logprobs, token))


class _Slot:
    """What one row slot holds."""

    def __init__(self, start: RowStart) -> None:
        self.request = start.request
        self.incarnation = start.incarnation
        self.tokens = list(start.tokens)
        self.num_logprobs = start.sampling.logprobs
        self.table: list[int] = []
        self.num_computed: int | None = None
        """None: the first row says how much of the page table is already computed (a prefix hit)."""


def _handle(rank: int) -> bytes:
    return b"counting:%d" % rank


def _entries(first_position: int, tokens: Sequence[int]) -> NDArray[np.int64]:
    positions = np.arange(first_position, first_position + len(tokens), dtype=np.int64)
    return (positions << 32) | np.asarray(tokens, np.int64)


def _logprob(num_logprobs: int | None, token: int) -> TokenLogprob | None:
    if num_logprobs is None:
        return None
    return TokenLogprob(token, 0.0, [TopLogprob(token, 0.0)][:num_logprobs])
