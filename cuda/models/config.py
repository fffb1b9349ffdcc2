"""config.json of a Hugging Face folder, read into a ModelSpec.

What the forward pass does not do is refused here, by field, value and what is supported; absent fields mean what
transformers' config classes say. Reads values only: no file, no tensor. Read `cuda.models.folder` for the files.
"""

import math
from collections.abc import Mapping
from typing import Final, get_args

from cuda.models.fields import MAX_COUNT, Fields
from cuda.models.spec import Family, ModelSpec, RopeScaling, UnsupportedModel

FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
_ARCHITECTURES: Final[Mapping[Family, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SUPPORTED: Final = f"supported are {', '.join(_ARCHITECTURES.values())}"

# Fields that would change the computation, with the only values under which they do not (absent is always fine).
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None,),
    "compression_config": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "partial_rotary_factor": (None, 1.0),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    "clip_qkv": (None,),
    "use_qk_norm": (None, False),
    "dual_chunk_attention_config": (None,),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "use_bidirectional_attention": (None, False),
    "is_causal": (None, True),
}
_ROPE_FIELDS: Final = frozenset(
    (
        "rope_theta",
        "rope_type",
        "type",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
    )
)


def parse_spec(config: Mapping[str, object], eos_token_ids: tuple[int, ...], where: str = "config.json") -> ModelSpec:
    """Return what `config` declares; UnsupportedModel names the first field that cannot be honoured."""
    fields = Fields(config, where)
    family = _family(fields)
    for name, allowed in _ONLY.items():
        fields.only(name, allowed)
    hidden_size = fields.count("hidden_size", _DEFAULT_HIDDEN)
    num_heads = fields.count("num_attention_heads", 32)
    num_kv_heads = _num_kv_heads(fields, family, num_heads)
    max_positions = fields.count("max_position_embeddings", _DEFAULT_POSITIONS[family])
    rope_theta, rope_scaling = _rope(fields, max_positions)
    attention_bias = family in ("llama", "qwen3") and fields.flag("attention_bias", default=False)
    _refuse_foreign_biases(fields, family)
    vocab_size = fields.count("vocab_size", 151936 if family.startswith("qwen") else 32000)
    for token in eos_token_ids:
        if not 0 <= token < vocab_size:
            raise UnsupportedModel(f"{where}: eos_token_id {token} is outside the vocabulary of {vocab_size}")
    return ModelSpec(
        family=family,
        num_layers=fields.count("num_hidden_layers", 32),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size", _DEFAULT_INTERMEDIATE[family]),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        vocab_size=vocab_size,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, above=0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_model_len=_max_model_len(max_positions, rope_scaling),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=attention_bias or family == "qwen2",
        o_bias=attention_bias,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", default=False),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(fields, family),
        eos_token_ids=eos_token_ids,
    )


_DEFAULT_HIDDEN: Final = 4096
_DEFAULT_KV_HEADS: Final[Mapping[Family, int]] = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_INTERMEDIATE: Final[Mapping[Family, int]] = {"llama": 11008, "mistral": 14336, "qwen2": 22016, "qwen3": 22016}
_DEFAULT_POSITIONS: Final[Mapping[Family, int]] = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}


def _family(fields: Fields) -> Family:
    declared = fields.get("model_type")
    for family in FAMILIES:
        if declared == family:
            if (architectures := fields.get("architectures")) not in (None, [], [_ARCHITECTURES[family]]):
                raise fields.refused("architectures", _SUPPORTED, architectures)
            return family
    raise fields.refused("model_type", f"supported are {', '.join(FAMILIES)}")


def _num_kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    """Absent and null differ: null is one KV head for each query head."""
    absent = num_heads if "num_key_value_heads" in fields else _DEFAULT_KV_HEADS.get(family, num_heads)
    num_kv_heads = fields.count("num_key_value_heads", absent)
    if num_heads % num_kv_heads:
        raise fields.refused("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    return num_kv_heads


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if family == "qwen3":
        head_dim = fields.count("head_dim", 128)
    elif fields.get("head_dim") is not None:
        head_dim = fields.count("head_dim", 0)
    elif hidden_size % num_heads:
        raise fields.refused("num_attention_heads", f"without head_dim it must divide hidden_size ({hidden_size})")
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise fields.refused("head_dim", "rotary positions need an even size", head_dim)
    return head_dim


def _refuse_foreign_biases(fields: Fields, family: Family) -> None:
    if family == "mistral":
        fields.only("attention_bias", (None, False))
    if family != "llama":
        fields.only("mlp_bias", (None, False))


def _rope(fields: Fields, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Both forms: `rope_theta` beside `rope_scaling`, and all in `rope_parameters` (transformers 5)."""
    field = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = fields.group(field)
    for name in rope:
        if name not in _ROPE_FIELDS and rope.get(name) is not None:
            raise rope.refused(name, "supported are rope types default, linear and llama3 over the whole head")
    rope.only("partial_rotary_factor", (None, 1.0))
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0, above=0), above=0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor", above=0))
    if kind != "llama3":
        raise rope.refused("rope_type", "supported are default, linear and llama3", kind)
    original = rope.count("original_max_position_embeddings", max_positions)
    scaling = RopeScaling(
        "llama3",
        rope.number("factor", above=0),
        rope.number("low_freq_factor", above=0),
        rope.number("high_freq_factor", above=0),
        fields.count("original_max_position_embeddings", original),
    )
    if math.isclose(scaling.low_freq_factor, scaling.high_freq_factor):
        raise rope.refused("high_freq_factor", "it must differ from low_freq_factor")
    return theta, scaling


def _max_model_len(max_positions: int, scaling: RopeScaling | None) -> int:
    """Linear scaling stretches what max_position_embeddings says; for Llama 3's kind it says the stretched size."""
    if scaling is None or scaling.kind == "llama3":
        return max_positions
    return int(min(max(1.0, max_positions * scaling.factor), MAX_COUNT))


def _sliding_window(fields: Fields, family: Family) -> int | None:
    """One window for every layer, or none; a mix of both is refused."""
    window = _declared_window(fields, family)
    num_layers = fields.count("num_hidden_layers", 32)
    kinds = fields.get("layer_types")
    if kinds is None and family.startswith("qwen") and window is not None:
        full = min(num_layers, fields.index("max_window_layers", 28))
        kinds = ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    if kinds is None:
        return window
    if kinds == ["full_attention"] * num_layers and (window is None or family.startswith("qwen")):
        return None
    if kinds == ["sliding_attention"] * num_layers and window is not None:
        return window
    raise fields.refused("layer_types", "supported is one kind of attention for all layers", kinds)


def _declared_window(fields: Fields, family: Family) -> int | None:
    if family == "llama":
        fields.only("sliding_window", (None,))
        return None
    if family.startswith("qwen") and not fields.flag("use_sliding_window", default=False):
        return None
    if "sliding_window" in fields and fields.get("sliding_window") is None:
        return None
    return fields.count("sliding_window", 4096)
