"""Names and shapes of the tensors that a Hugging Face folder of a supported decoder holds, and a shard's part of each.

The one list that a checkpoint is checked against, whether it is about to be read or about to be written. No torch.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from cuda.models.shard import Shard
from cuda.models.spec import ModelSpec, UnsupportedModel

EMBEDDING: Final = "model.embed_tokens.weight"
LM_HEAD: Final = "lm_head.weight"
# Buffers that old checkpoints carry and that follow from the configuration.
_IGNORED: Final = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
Shapes = Mapping[str, tuple[int, ...]]


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor that must be there; without `lm_head.weight` when it is tied to the embedding."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    if not spec.tie_word_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, spec.hidden_size)
    for index in range(spec.num_layers):
        shapes.update(_layer_shapes(spec, f"model.layers.{index}"))
    return shapes


def check_shapes(found: Shapes, expected: Shapes, where: str) -> None:
    """Raise UnsupportedModel for the first tensor that is missing, of another shape, or not expected."""
    for name, shape in expected.items():
        if name not in found:
            raise UnsupportedModel(f"{where}: tensor {name} {list(shape)} is missing")
        if found[name] != shape:
            raise UnsupportedModel(f"{where}: tensor {name} is {list(found[name])}; its config says {list(shape)}")
    for name, shape in found.items():
        if name not in expected and name != LM_HEAD and not name.endswith(_IGNORED):
            raise UnsupportedModel(f"{where}: tensor {name} {list(shape)} is not part of this decoder")


def _layer_shapes(spec: ModelSpec, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, feed_forward = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if spec.qk_norm:
        norms |= {"self_attn.q_norm": spec.head_dim, "self_attn.k_norm": spec.head_dim}
    for name, size in norms.items():
        yield f"{prefix}.{name}.weight", (size,)
    linears = {
        "self_attn.q_proj": (q_rows, hidden, spec.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, q_rows, spec.o_bias),
        "mlp.gate_proj": (feed_forward, hidden, spec.mlp_bias),
        "mlp.up_proj": (feed_forward, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, feed_forward, spec.mlp_bias),
    }
    for name, (rows, columns, bias) in linears.items():
        yield f"{prefix}.{name}.weight", (rows, columns)
        if bias:
            yield f"{prefix}.{name}.bias", (rows,)


def held_ranges(spec: ModelSpec, shard: Shard) -> dict[str, tuple[range, ...]]:
    """Return what a shard's rank reads of every tensor, a range for each dimension.

    Query, key, value, gate and up projections are cut by rows, what follows them by columns: a rank's products are
    then parts of a sum over all ranks. A bias of that sum is added once, by rank 0: for the others its range is empty.
    """
    dim = spec.head_dim
    queries, keys = _scaled(shard.heads, dim), _scaled(shard.kv_heads, dim)
    cut = {
        "self_attn.q_proj": (queries, None),
        "self_attn.k_proj": (keys, None),
        "self_attn.v_proj": (keys, None),
        "self_attn.o_proj": (None, queries),
        "mlp.gate_proj": (shard.features, None),
        "mlp.up_proj": (shard.features, None),
        "mlp.down_proj": (None, shard.features),
        "model.embed_tokens": (shard.vocabulary, None),
        "lm_head": (shard.vocabulary, None),
    }
    held: dict[str, tuple[range, ...]] = {}
    for name, shape in expected_shapes(spec).items():
        module, _, kind = name.removeprefix("model.layers.").rpartition(".")
        rows, columns = cut.get(module.partition(".")[2] if module[0].isdigit() else module, (None, None))
        if kind == "bias" and columns is not None:
            rows = range(shape[0] if shard.rank == 0 else 0)
        held[name] = tuple(
            range(size) if part is None else part for size, part in zip(shape, (rows, columns), strict=False)
        )
    return held


def _scaled(part: range, factor: int) -> range:
    return range(part.start * factor, part.stop * factor)
