"""One GGUF file into one Hugging Face model folder: the list of steps.

Reads the header once, decides everything from it, then streams the tensors. No torch. Read
`cuda.models.gguf.config` and `cuda.models.gguf.tokenizer` for what is honoured and refused.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cuda.models.config import parse_spec
from cuda.models.gguf.config import hf_config, hf_generation_config
from cuda.models.gguf.header import GgufHeader, read_header
from cuda.models.gguf.tensors import ROPE_FACTORS, dequantized, write_safetensors
from cuda.models.gguf.tokenizer import hf_tokenizer, hf_tokenizer_config


def convert(gguf: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write config, tokenizer and fp32 weights of `gguf` into the existing `folder`.

    `progress` gets the fraction done. UnsupportedModel when the file is broken or declares what is not supported.
    """
    header = read_header(gguf)
    config = hf_config(header, _rope_factors(gguf, header))
    spec = parse_spec(config, (), str(gguf))
    tokenizer = hf_tokenizer(header.metadata)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", hf_generation_config(config))
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", hf_tokenizer_config(header.metadata))
    write_safetensors(gguf, header, spec, folder / "model.safetensors", progress)


def _rope_factors(gguf: Path, header: GgufHeader) -> NDArray[np.float32] | None:
    tensor = header.tensors.get(ROPE_FACTORS)
    return None if tensor is None else dequantized(gguf, tensor)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
