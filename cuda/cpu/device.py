"""The CPU device: the decoder's forward pass recorded once, and run for every step plan on all cores.

Arithmetic is float32 whatever weights and KV are kept in, and what a row computes never depends on its company: a
request's logits are the same bits alone or in a batch, in one chunk or many (`batch_invariant` costs nothing here).
A rank of a group holds its shard and meets the others in shared memory; all come to the same bits.
Owns weights, KV pool and slots. Read `cuda.models.decoder` for the pass, `cuda.cpu.kernels.program` for how it runs.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cuda.collectives.membership import Membership
from cuda.cpu.kernels import attention as cpu_attention
from cuda.cpu.kernels import sample as cpu_sample
from cuda.cpu.kernels.memory import aligned_zeros
from cuda.cpu.kernels.program import Program, compile_kernels
from cuda.cpu.kernels.rope import Shape
from cuda.cpu.ops import CpuOps, CpuState, padded
from cuda.cpu.ranks import CpuRanks
from cuda.cpu.slots import Batch, SlotTable
from cuda.cpu.weights import CpuWeights, Formats, pack_weights, return_free_memory, weights_bytes
from cuda.devices.device import DeviceConfig, PoolInfo
from cuda.devices.rows import Drawn, passes, sampled_rows
from cuda.models.checkpoint import load_weights
from cuda.models.decoder import forward
from cuda.models.folder import read_spec
from cuda.models.kv import KvLayout, PoolRequest, available_memory, choose_num_pages
from cuda.models.rope import rope_table
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec
from protocol.sampling import SamplingParams
from protocol.step import RowStart, SampledRow, StepPlan, StepResult, StepRow

PASS_TOKENS = 1024
"""A longer step is computed in passes of this many tokens, so that buffers stay small."""


@dataclass(frozen=True)
class _Loaded:
    """What `load` makes; the program is recorded later, because it points into the memory of peers."""

    weights: CpuWeights
    state: CpuState
    program: Program


class CpuDevice:
    """One rank's shard, or the whole model. See `cuda.devices.device.Device`."""

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._pass_tokens = max(config.max_running, min(config.max_step_tokens, PASS_TOKENS))
        self._loaded: _Loaded | None = None
        self._ops: CpuOps | None = None

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        """Load, pack and allocate; where there are no peers to open first, also record and run one token.

        UnsupportedModel if the folder cannot be served or shared out so, ValueError if the pool has no room for a page,
        PeerMemoryFailed if there is none for what the ranks share.
        """
        config = self._config
        whole = read_spec(Path(config.folder))
        shard = split(whole, config.world_size)[config.rank]
        spec = shard.spec(whole)
        dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        layout = KvLayout.of(spec, config.page_size, dtype.itemsize)
        request = PoolRequest(config.num_pages, config.kv_memory, config.max_running * config.max_model_len)
        num_pages = choose_num_pages(layout, request, available_memory() // config.world_size)
        with ThreadPoolExecutor(1) as compiler:  # the first time on a machine this takes longer than reading weights
            compiled = compiler.submit(compile_kernels)
            weights = self._load_weights(whole, shard, dtype, progress)
            compiled.result()
        self._loaded = self._prepare(spec, layout, num_pages, weights)
        if config.world_size == 1:
            self._begin(self._loaded)
        progress(1.0)
        return PoolInfo(
            num_pages=num_pages,
            page_size=config.page_size,
            weights_bytes=weights_bytes(weights),
            kv_bytes=num_pages * layout.page_bytes,
        )

    def export(self) -> bytes:
        """See `Device`."""
        ranks = self._prepared.state.ranks
        return b"" if ranks is None else ranks.export()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """See `Device`: the first token that all ranks run together shows that all are there."""
        loaded = self._prepared
        if loaded.state.ranks is not None:
            loaded.state.ranks.open_peers(handles)
            self._begin(loaded)
            loaded.state.ranks.seal()

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. ValueError for a row whose pages do not hold it, PeerTimeout if a rank stays away."""
        began = time.perf_counter()
        loaded = self._prepared
        state = loaded.state
        for start in plan.starts:
            state.slots.start(start, state.spec.vocab_size)
        for row in plan.rows:
            state.slots.add_pages(row)
        sampled: list[SampledRow] = []
        for rows in passes(plan.rows, self._pass_tokens):
            state.batch.fill(rows)
            loaded.program.run()
            if state.ranks is not None:
                state.ranks.check(plan.step)
            sampled += sampled_rows(state.batch.results, _drawn(state, rows))
        return StepResult(plan.epoch, plan.step, sampled, duration_s=time.perf_counter() - began)

    def close(self) -> None:
        """End the threads and let go of all memory."""
        self._ops = None
        if self._loaded is not None:
            self._loaded.program.close()
            if self._loaded.state.ranks is not None:
                self._loaded.state.ranks.close()
            self._loaded = None

    @property
    def _prepared(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError("the device is not loaded")
        return self._loaded

    def _load_weights(
        self, spec: ModelSpec, shard: Shard, dtype: torch.dtype, progress: Callable[[float], None]
    ) -> CpuWeights:
        weights = load_weights(Path(self._config.folder), spec, dtype, lambda done: progress(0.6 * done), shard=shard)
        formats = Formats.of(dtype, self._config.quantization)
        packed = pack_weights(weights, formats, shard, lambda done: progress(0.6 + 0.35 * done))
        del weights
        return_free_memory()
        return packed

    def _prepare(self, spec: ModelSpec, layout: KvLayout, num_pages: int, weights: CpuWeights) -> _Loaded:
        config = self._config
        group = spec.num_heads // spec.num_kv_heads
        slots = SlotTable(config.max_running, config.max_model_len, config.page_size, spec.eos_token_ids)
        state = CpuState(
            spec=spec,
            batch=Batch(self._pass_tokens, config.max_running, group),
            slots=slots,
            pools=[
                aligned_zeros(num_pages * layout.page_values * layout.item_bytes, np.uint8)
                for _ in range(spec.num_layers)
            ],
            shape=_shape(spec, layout, slots.page_tables.shape[1]),
            rope_table=rope_table(spec, config.max_model_len + 1).numpy(),
            ranks=self._ranks(spec),
        )
        scratch_bytes = max(
            cpu_attention.scratch_bytes(group, spec.head_dim), cpu_sample.scratch_bytes(spec.vocab_size)
        )
        return _Loaded(weights, state, Program(config.num_threads, scratch_bytes))

    def _ranks(self, spec: ModelSpec) -> CpuRanks | None:
        config = self._config
        if config.world_size == 1:
            return None
        member = Membership(config.rank, config.world_size, config.peer_timeout_s)
        part_bytes = 4 * self._pass_tokens * padded(spec.hidden_size)
        return CpuRanks(member, part_bytes, 4 * config.max_running * padded(spec.vocab_size))

    def _begin(self, loaded: _Loaded) -> None:
        """Record the pass, and run it once, so that nothing is compiled or first touched later."""
        self._ops = CpuOps(loaded.state, loaded.program, self._pass_tokens, self._config.max_running)
        forward(self._ops, loaded.weights)
        sampling = SamplingParams(max_tokens=1, temperature=0, seed=0)
        start = RowStart(0, 0, 0, [0], 1, sampling)
        self.execute(StepPlan(0, 0, [start], [StepRow(0, 0, 1, samples=True, new_pages=(0,))]))


def _shape(spec: ModelSpec, layout: KvLayout, max_pages: int) -> npt.NDArray[np.int64]:
    """See `cuda.cpu.kernels.rope`."""
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, layout.page_size, max_pages, layout.item_bytes)
    return np.array(Shape(*sizes, window=spec.sliding_window or 0), np.int64)


def _drawn(state: CpuState, rows: Sequence[StepRow]) -> list[Drawn]:
    sampling = [row.slot for row in rows if row.samples]
    return [Drawn(slot, state.slots.rows.holder(slot), place) for place, slot in enumerate(sampling)]
