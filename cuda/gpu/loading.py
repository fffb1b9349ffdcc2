"""From a model folder to everything that a step of the gpu device touches; the KV pool takes what the rest leaves.

Weights are read and copied one tensor at a time, so that the host never holds the model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from cuda.collectives.exchange import Exchange
from cuda.collectives.membership import Membership
from cuda.devices.device import DeviceConfig, PoolInfo
from cuda.gpu.batch import BatchShape
from cuda.gpu.kernels import GpuMatrix, GpuWeights, Kernels
from cuda.gpu.library_ranks import LibraryRanks
from cuda.gpu.ops import GpuBuffers, GpuState
from cuda.gpu.ranks import Exchanged, GpuRanks, Slab
from cuda.gpu.runner import PassRunner
from cuda.gpu.slots import GpuSlots
from cuda.gpu.stages import Stages
from cuda.kernels.backend import Backend, on_device
from cuda.models.checkpoint import LayerWeights, LinearWeight, load_weights, stored_dtype
from cuda.models.decoder import DecoderLayer, DecoderWeights
from cuda.models.folder import read_spec
from cuda.models.kv import GPU_MEMORY_SHARE, KvLayout, PoolRequest, choose_num_pages
from cuda.models.rope import rope_table
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec, UnsupportedModel
from protocol.errors import PartFailed

PASS_TOKENS = 8192
"""A longer step is computed in passes of this many tokens, so that buffers stay small."""
NUM_STAGES = 4
"""Passes on their way: those of two steps, if they are one each, and room to lay out more."""
MAX_UPDATES = 1024
"""Page-table entries that a pass has room for; more travel before it."""
WORKSPACE_BYTES = 256 << 20
"""Kept free for what the matrix library allocates at its first calls, and for captured graphs."""
POOL = ("the KV pool", "--kv-memory", "--num-pages")
RECORDED = ("recorded steps and the matrix library", "--kv-memory", "--num-pages", "--max-running")
BUFFERS = ("the buffers of a step", "--max-running", "--step-tokens", "--max-model-len")
"""What things are called where memory lacks, and the settings that leave more for them."""


@dataclass(frozen=True)
class Loaded:
    """What a step touches."""

    pool: PoolInfo
    pass_tokens: int
    max_updates: int
    kernels: Kernels
    slots: GpuSlots
    stages: Stages
    runner: PassRunner
    ranks: Exchange | None
    """The group, if the model is shared out."""


def load_model(config: DeviceConfig, backend: Backend, progress: Callable[[float], None]) -> Loaded:
    """Compile, load and allocate; nothing has run yet. Errors as `GpuDevice.load` has them."""
    folder = Path(config.folder)
    whole = read_spec(folder)
    shards = split(whole, config.world_size)
    shard = shards[config.rank]
    spec = shard.spec(whole)
    if config.quantization != "none":
        raise UnsupportedModel(f"quantization {config.quantization} is for cpu devices only; use none on cuda and emu")
    dtype = stored_dtype(folder) if config.dtype == "auto" else getattr(torch, config.dtype)
    pass_tokens = max(config.max_running, min(config.max_step_tokens, PASS_TOKENS))
    with memory_for(*BUFFERS):
        kernels = Kernels(backend, spec, dtype, config)  # first of all: they may not take the model
    with memory_for("the weights", "--dtype"):
        weights, weights_bytes = load_onto(backend, folder, whole, shard, dtype, progress)
    with memory_for(*BUFFERS):
        slots = GpuSlots(backend, kernels.sampler.tables, spec.eos_token_ids, config)
        max_items = kernels.attention.planner.max_items(pass_tokens, config.max_running)
        shape = BatchShape(pass_tokens, config.max_running, max_items, MAX_UPDATES)
        stages = Stages(backend, shape, config.max_model_len, NUM_STAGES)
        buffers = GpuBuffers(backend, spec, len(shard.vocabulary), dtype, pass_tokens, config.max_running)
        table = on_device(backend, rope_table(spec, config.max_model_len + 1))
    layout = KvLayout.of(spec, config.page_size, dtype.itemsize)
    exchanged = Exchanged(
        dtype, pass_tokens, spec.hidden_size, spec.rms_norm_eps, config.max_running,
        tuple(each.vocabulary for each in shards),
    )  # fmt: skip
    slab_bytes = 0 if config.world_size == 1 else Slab.of(exchanged, config.world_size).num_bytes
    num_pages = pool_pages(config, layout, backend.free_bytes() - slab_bytes)
    with memory_for(*POOL):
        pools = [backend.empty(layout.shape(num_pages), dtype) for _ in range(spec.num_layers)]
    state = GpuState(backend, shape, slots, pools, table, _ranks(backend, config, exchanged))
    runner = PassRunner(backend, weights, kernels, buffers, state)
    pool = PoolInfo(num_pages, config.page_size, weights_bytes, num_pages * layout.page_bytes)
    return Loaded(pool, pass_tokens, shape.max_updates, kernels, slots, stages, runner, state.ranks)


@contextmanager
def memory_for(what: str, *settings: str) -> Iterator[None]:
    """Turn the lack of memory inside into one line that names what to lower."""
    try:
        yield
    except RuntimeError as error:  # torch's allocator has its own kind; the driver's comes through torch and CuPy
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
            raise
        raise PartFailed(f"not enough device memory for {what}; lower {' or '.join(settings)}") from error


def load_onto(  # noqa: PLR0913, PLR0917 - as `load_weights`
    backend: Backend,
    folder: Path,
    spec: ModelSpec,
    shard: Shard,
    dtype: torch.dtype,
    progress: Callable[[float], None],
) -> tuple[GpuWeights, int]:
    """What `shard` holds of the decoder `spec`, and its bytes; `progress` gets a fraction 0..1.

    Errors as `load_weights` has them.
    """
    num_bytes = 0

    def place(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal num_bytes
        num_bytes += tensor.nbytes
        return on_device(backend, tensor, dtype)

    weights = load_weights(folder, spec, dtype, progress, place, shard=shard)
    layers = [_layer(layer, is_shared=shard.world_size > 1) for layer in weights.layers]
    embedding = GpuMatrix(weights.embedding.weight, first_row=shard.vocabulary.start)
    placed = DecoderWeights(embedding, layers, weights.final_norm, _matrix(weights.lm_head))
    return placed, num_bytes


def pool_pages(config: DeviceConfig, layout: KvLayout, free_bytes: int) -> int:
    """Pages of the pool, of `free_bytes` that can still be had. PartFailed if not even one fits."""
    request = PoolRequest(config.num_pages, config.kv_memory, config.max_running * config.max_model_len)
    try:
        return choose_num_pages(layout, request, max(0, free_bytes - WORKSPACE_BYTES), GPU_MEMORY_SHARE)
    except ValueError as error:
        mend = "lower --max-running, --step-tokens or --dtype" if config.kv_memory is None else "raise --kv-memory"
        raise PartFailed(f"no device memory for the KV pool: {error}; {mend}") from error


def _ranks(backend: Backend, config: DeviceConfig, exchanged: Exchanged) -> Exchange | None:
    if config.world_size == 1:
        return None
    member = Membership(config.rank, config.world_size, config.peer_timeout_s)
    if not config.peer_to_peer:
        return LibraryRanks(backend, member, exchanged)
    try:
        return GpuRanks(backend, member, exchanged)
    except ValueError as error:
        raise UnsupportedModel(f"{config.folder}: {error}") from error


def _layer(layer: LayerWeights, *, is_shared: bool) -> DecoderLayer[torch.Tensor, GpuMatrix]:
    return DecoderLayer(
        input_norm=layer.input_norm,
        qkv=_matrix(layer.qkv),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        o=_matrix(layer.o, is_part=is_shared),
        post_attention_norm=layer.post_attention_norm,
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down, is_part=is_shared),
    )


def _matrix(linear: LinearWeight, *, is_part: bool = False) -> GpuMatrix:
    return GpuMatrix(linear.weight, linear.bias, is_part)
