"""What a GGUF header declares of its decoder, as the config.json of the same model.

Every hyper-parameter under the architecture's prefix is honoured or refused: an unknown one is an error, because it
would change the computation. Read `cuda.models.config` for the second round of checks that the result goes through.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cuda.models.fields import Fields
from cuda.models.gguf.header import GgufHeader
from cuda.models.spec import UnsupportedModel

_ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Keys that are read below, and those that only describe.
_KNOWN: Final = frozenset(
    (
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    )
)
# Keys whose value must be the one that means "not used".
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "pooling_type": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (1.0,),
}
_LLAMA3_ORIGINAL: Final = 8192
_LLAMA3_LOW: Final = 1.0
_LLAMA3_HIGH: Final = 4.0


def hf_config(header: GgufHeader, rope_factors: NDArray[np.float32] | None) -> dict[str, object]:
    """Return config.json's content; `rope_factors` [D/2] are the file's scaled rotary frequencies, if it has any."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"GGUF: general.architecture is {architecture!r}; supported are {', '.join(_ARCHITECTURES)}"
        )
    whole = Fields(header.metadata, "GGUF")
    whole.only("general.type", ("model",))
    whole.only("split.count", (0, 1))
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    fields = Fields(own, f"GGUF: {architecture}")
    for name in fields:
        if name not in _KNOWN and name not in _ONLY:
            raise fields.refused(name, "this setting is not supported")
        if name in _ONLY:
            fields.only(name, _ONLY[name])
    num_heads = fields.count("attention.head_count")
    head_dim = _head_dim(fields, num_heads)
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "vocab_size": _vocab_size(header, fields),
        "hidden_size": fields.count("embedding_length"),
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": fields.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", above=0),
        "rope_theta": fields.number("rope.freq_base", 10_000.0, above=0),
        "rope_scaling": _rope_scaling(fields, rope_factors, head_dim),
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(header),
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _vocab_size(header: GgufHeader, fields: Fields) -> int:
    if "token_embd.weight" not in header.tensors:
        raise UnsupportedModel("GGUF: tensor token_embd.weight is missing")
    num_rows = header.tensors["token_embd.weight"].shape[0]
    if fields.count("vocab_size", num_rows) != num_rows:
        raise fields.refused("vocab_size", f"token_embd.weight has {num_rows} rows")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > num_rows:
        raise UnsupportedModel(f"GGUF: there are {len(tokens)} tokens; token_embd.weight has {num_rows} rows")
    return num_rows


def _head_dim(fields: Fields, num_heads: int) -> int:
    hidden_size = fields.count("embedding_length")
    if fields.get("attention.key_length") is None and hidden_size % num_heads:
        raise fields.refused("attention.head_count", f"it must divide embedding_length ({hidden_size})")
    head_dim = fields.count("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.count(name, head_dim) != head_dim:
            raise fields.refused(name, f"supported is only the head size ({head_dim})")
    return head_dim


def _rope_scaling(fields: Fields, factors: NDArray[np.float32] | None, head_dim: int) -> dict[str, object] | None:
    kind = fields.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear"):
        raise fields.refused("rope.scaling.type", "supported are none, linear, and llama3 by rope_freqs.weight")
    factor = fields.number("rope.scale_linear", fields.number("rope.scaling.factor", 1.0, above=0), above=0)
    if kind == "none" and "rope.scaling.type" in fields:
        factor = 1.0
    if factor != 1.0:
        if factors is not None:
            raise fields.refused("rope.scaling.factor", "linear scaling and rope_freqs.weight do not go together")
        return {"rope_type": "linear", "factor": factor}
    if factors is None or bool(np.all(factors == 1)):
        return None
    if factors.shape == (head_dim // 2,) and bool(np.all(factors >= 1)) and bool(np.all(np.isfinite(factors))):
        scaling = _llama3_scaling(fields, factors)
        if np.allclose(factors, _llama3_factors(fields, scaling, factors.size), rtol=1e-4):
            return scaling
    raise UnsupportedModel("GGUF: tensor rope_freqs.weight is not Llama 3.1's scaling; no other is supported")


def _llama3_scaling(fields: Fields, factors: NDArray[np.float32]) -> dict[str, object]:
    """Assume the one law that fills rope_freqs.weight today; the caller computes it anew and compares."""
    return {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": fields.count("rope.scaling.original_context_length", _LLAMA3_ORIGINAL),
    }


def _llama3_factors(fields: Fields, scaling: Mapping[str, object], size: int) -> list[float]:
    """How much each of the `size` frequencies is slowed down: not, by `factor`, or smoothly between."""
    theta = fields.number("rope.freq_base", 10_000.0, above=0)
    own = Fields(scaling, "rope_freqs.weight")
    factor, original = own.number("factor", above=0), own.count("original_max_position_embeddings")
    slowed = []
    for index in range(size):
        turns = original / (2 * math.pi * theta ** (index / size))
        smooth = min(1.0, max(0.0, (turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)))
        slowed.append(1 / ((1 - smooth) / factor + smooth))
    return slowed


def _end_tokens(header: GgufHeader) -> int | Sequence[int] | None:
    """End of sequence, of turn and of message, as far as they are declared."""
    fields = Fields(header.metadata, "GGUF")
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    declared = [fields.index(f"tokenizer.ggml.{name}") for name in names if f"tokenizer.ggml.{name}" in header.metadata]
    tokens = list(dict.fromkeys(declared))
    return tokens[0] if len(tokens) == 1 else tokens or None
