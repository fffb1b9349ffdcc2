"""One GGUF file into one Hugging Face model folder: the list of steps, and what happens to tensors.

Reads the header once, decides everything from it, then streams the tensors, one at a time, into one safetensors file:
dequantised to fp32 by the `gguf` package's reference code, under their Hugging Face names, llama.cpp's order of q and k
rows undone. No torch. Read `cuda.models.gguf.config` and `cuda.models.gguf.tokenizer` for what is honoured and refused.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from gguf.quants import dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray

from cuda.models.config import parse_spec
from cuda.models.gguf.config import hf_config
from cuda.models.gguf.header import GgufHeader, GgufTensor, read_header
from cuda.models.gguf.tokenizer import hf_tokenizer, hf_tokenizer_config
from cuda.models.layout import check_shapes, expected_shapes
from cuda.models.spec import ModelSpec, UnsupportedModel

_ROPE_FACTORS: Final = "rope_freqs.weight"
"""Scaled rotary frequencies as a tensor: part of the configuration, not of the weights."""
_TOP: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME: Final = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


def convert(gguf: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write config, tokenizer and fp32 weights of `gguf` into the existing `folder`.

    `progress` gets the fraction done. UnsupportedModel when the file is broken or declares what is not supported.
    """
    header = read_header(gguf)
    rope_factors = header.tensors.get(_ROPE_FACTORS)
    config = hf_config(header, None if rope_factors is None else _dequantized(gguf, rope_factors))
    spec = parse_spec(config, (), str(gguf))
    tokenizer = hf_tokenizer(header.metadata)
    _write_json(folder / "config.json", config)
    specials = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", specials)  # a GGUF file declares nothing else of it
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", hf_tokenizer_config(header.metadata))
    write_safetensors(gguf, header, spec, folder / "model.safetensors", progress)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_safetensors(
    gguf: Path, header: GgufHeader, spec: ModelSpec, target: Path, progress: Callable[[float], None]
) -> None:
    """Write every tensor of the file as fp32 into `target`, under its Hugging Face name.

    UnsupportedModel names a tensor that is missing, misshapen, or not part of the decoder, before anything is
    written, and an encoding that cannot be read.
    """
    tensors = {_hf_name(name): tensor for name, tensor in header.tensors.items() if name != _ROPE_FACTORS}
    check_shapes({name: tensor.shape for name, tensor in tensors.items()}, expected_shapes(spec), str(gguf))
    total = sum(tensor.num_bytes for tensor in tensors.values())
    done = 0
    with target.open("wb") as file:
        file.write(_safetensors_header(tensors))
        for tensor in tensors.values():
            file.write(_restored(_dequantized(gguf, tensor), tensor.name, spec).data)
            done += tensor.num_bytes
            progress(done / total)


def _hf_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor; UnsupportedModel when no supported decoder has it."""
    if match := _NAME.fullmatch(name):
        layer, part, kind = match.groups()
        if layer is None and part in _TOP:
            return f"{_TOP[part]}.{kind}"
        if layer is not None and part in _LAYER:
            return f"model.layers.{int(layer)}.{_LAYER[part]}.{kind}"
    raise UnsupportedModel(f"GGUF tensor {name} is not part of a supported dense decoder")


def _dequantized(gguf: Path, tensor: GgufTensor) -> NDArray[np.float32]:
    """Return the tensor's values as fp32, in its row-major shape."""
    raw = np.memmap(gguf, np.uint8, "r", tensor.offset, (tensor.num_bytes,))
    rows = raw.reshape(quant_shape_to_byte_shape(tensor.shape, tensor.encoding))
    try:
        values: NDArray[np.float32] = dequantize(rows, tensor.encoding)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"GGUF tensor {tensor.name} is encoded as {tensor.encoding.name}: not supported"
        ) from error
    return values.reshape(tensor.shape).astype(np.float32, copy=False)


def _restored(values: NDArray[np.float32], name: str, spec: ModelSpec) -> NDArray[np.float32]:
    """Undo the row order that llama.cpp gives q and k of Llama models.

    It interleaves the two halves of every head ([i, i + D/2] become neighbours), for its rotary kernels; Hugging
    Face weights rotate halves.
    """
    num_heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}.get(name.split(".")[-2], 0)
    if spec.family != "llama" or not num_heads:
        return np.ascontiguousarray(values)
    halves = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _safetensors_header(tensors: dict[str, GgufTensor]) -> bytes:
    """Length and JSON, padded with spaces to 8 bytes: https://huggingface.co/docs/safetensors."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 4 * math.prod(tensor.shape)
        entries[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
