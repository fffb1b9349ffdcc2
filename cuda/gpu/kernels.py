"""Every kernel that a model's forward pass needs, compiled for it; and which models they can serve."""

import torch

from cuda.devices.device import DeviceConfig
from cuda.gpu.linear import Linear
from cuda.kernels.activation import GatedActivation
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.attention import PARTIAL_BYTES, AttentionShape, PagedAttention
from cuda.kernels.attention_plan import SMALL_TILE_ROWS, SPLIT_KEYS
from cuda.kernels.backend import Backend
from cuda.kernels.gather import Gather, Scatter
from cuda.kernels.rope_and_store import RopeAndStore, RopeShape
from cuda.kernels.sample import Sampler
from cuda.models.spec import ModelSpec, UnsupportedModel


class Kernels:
    """UnsupportedModel, in the words of the kernel that cannot take the model's sizes."""

    def __init__(self, backend: Backend, spec: ModelSpec, dtype: torch.dtype, config: DeviceConfig) -> None:
        heads = spec.num_heads, spec.num_kv_heads, spec.head_dim, config.page_size
        try:
            self.gather = Gather(backend, dtype, spec.hidden_size)
            self.scatter = Scatter(backend)
            self.add_rms_norm = AddRmsNorm(backend, dtype, spec.hidden_size, spec.rms_norm_eps)
            self.rope_and_store = RopeAndStore(backend, dtype, RopeShape(*heads), spec.rms_norm_eps)
            self.attention = PagedAttention(
                backend,
                dtype,
                AttentionShape(*heads, spec.sliding_window or 0),
                partial_bytes=_partial_bytes(spec, config),
            )
            self.activation = GatedActivation(backend, dtype, "silu", spec.intermediate_size)
            self.sampler = Sampler(backend, spec.vocab_size, config.max_running)
        except ValueError as error:
            raise UnsupportedModel(f"{config.folder}: the CUDA kernels cannot take this model: {error}") from error
        self.linear = Linear(backend, dtype, dtype, batch_invariant=config.batch_invariant)
        self.to_logits = Linear(backend, dtype, torch.float32, batch_invariant=config.batch_invariant)


def _partial_bytes(spec: ModelSpec, config: DeviceConfig) -> int:
    """No more than all rows of small tiles can fill."""
    num_rows = config.max_running * 2 * SMALL_TILE_ROWS * -(-config.max_model_len // SPLIT_KEYS)
    return min(PARTIAL_BYTES, num_rows * spec.num_kv_heads * (spec.head_dim + 2) * 4)
