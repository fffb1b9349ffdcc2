"""Tiny GGUF files, written with the `gguf` package from the tiny Hugging Face folders: the way llama.cpp converts them.

Names come from the package's own table and q and k rows are interleaved as its converter does, so what the product
reads back has an independent source. `metadata` and `drop` plant one fault each.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.cuda.models.tiny import CHAT_TEMPLATE, Variant, tiny_model

Q = gguf.GGMLQuantizationType


def tiny_gguf(
    folder: Path,
    variant: Variant = "llama",
    *,
    encoding: Any = Q.F32,
    metadata: Mapping[str, object] | None = None,
    extra_tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    drop: tuple[str, ...] = (),
    **overrides: Any,
) -> Path:
    """Write `folder/<variant>.gguf`; matrices are encoded as `encoding`.

    `metadata` adds or replaces entries (a value of None removes one), `extra_tensors` adds tensors, and `drop` leaves
    out tensors, all by their GGUF names. `overrides` go to the Hugging Face config that it is made from.
    """
    source = tiny_model(folder, variant, **overrides)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    entries = {**_declared(config, source), **(metadata or {})}
    architecture = str(entries.pop("general.architecture"))
    path = folder / f"{variant}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in entries.items():
        if value is not None:
            _add(writer, key, value)
    tensors = {**_tensors(config, source), **(extra_tensors or {})}
    for name, values in tensors.items():
        if name not in drop:
            kind = encoding if values.ndim > 1 else Q.F32
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _declared(config: Mapping[str, Any], source: Path) -> dict[str, object]:
    architecture = "llama" if config["model_type"] == "mistral" else config["model_type"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    own = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "rope.dimension_count": head_dim,
        "vocab_size": config["vocab_size"],
    }
    return {
        "general.architecture": architecture,
        "general.type": "model",
        **{f"{architecture}.{key}": value for key, value in own.items()},
        **_tokenizer(source),
    }


def _tokenizer(source: Path) -> dict[str, object]:
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in vocab],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _tensors(config: Mapping[str, Any], source: Path) -> dict[str, np.ndarray[Any, Any]]:
    kind = gguf.MODEL_ARCH.LLAMA if config["model_type"] in ("llama", "mistral") else None
    kind = kind or {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[config["model_type"]]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    tensors = {}
    for name, values in load_file(source / "model.safetensors").items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        num_heads = heads.get(name.split(".")[-2])
        ordered = _interleaved(values, num_heads) if kind == gguf.MODEL_ARCH.LLAMA and num_heads else values
        tensors[str(names.get_name(name, try_suffixes=(".weight", ".bias")))] = ordered
    return tensors


def _interleaved(values: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's `permute`: the two halves of each head's rows become neighbours."""
    pairs = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _add(writer: Any, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
