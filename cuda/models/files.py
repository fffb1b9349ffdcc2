"""Whether the files of a model folder are whole, before any process is started for them. Headers only; no torch."""

import json
import struct
from pathlib import Path

from cuda.models.spec import UnsupportedModel

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (https://github.com/huggingface/safetensors, Format)."""


def check_files(folder: Path) -> None:
    """UnsupportedModel unless all weight files are as long as they declare, and the tokenizer is JSON."""
    for path in sorted(folder.glob("*.safetensors")):
        _check_weights(path)
    path = folder / "tokenizer.json"
    try:
        is_object = isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        raise UnsupportedModel(f"{path} is missing: a model folder needs a tokenizer.json to serve text") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {_line(error)}") from error
    if not is_object:
        raise UnsupportedModel(f"{path} holds no JSON object")


def _check_weights(path: Path) -> None:
    try:
        with path.open("rb") as file:
            (num_header_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if num_header_bytes > _MAX_HEADER_BYTES:
                raise UnsupportedModel(f"{path} is not a safetensors file: its header would be too large")
            header = json.loads(file.read(num_header_bytes))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        num_bytes = _LENGTH.size + num_header_bytes + max(ends, default=0)
        if path.stat().st_size != num_bytes:
            raise UnsupportedModel(
                f"{path} has {path.stat().st_size:,} bytes and declares {num_bytes:,}; fetch it again"
            )
    except (OSError, ValueError, RecursionError, struct.error) as error:
        raise UnsupportedModel(f"{path} cannot be read: {_line(error)}") from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise UnsupportedModel(f"{path} cannot be read: its header declares no tensors") from error


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
