"""The files of a model folder, read without torch.

Whether they are whole, before any process is started for them; and some rows of one matrix, enough to see how its
weights pack and how fast they go. Read `cuda.models.checkpoint` for how all weights are loaded and checked.
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from cuda.models.spec import UnsupportedModel

SAMPLED: Final = "mlp.gate_proj.weight"
_DTYPES: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER_BYTES: Final = 100_000_000
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


def sample_rows(folder: Path, max_values: int) -> npt.NDArray[np.float32]:
    """[rows, E] of a feed-forward layer, `max_values` or fewer; UnsupportedModel if there is none that can be read."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = _header(path, file)
            data_at = file.tell()
            for name, entry in header.items():
                if name.endswith(SAMPLED) and entry["dtype"] in _DTYPES:
                    file.seek(data_at + entry["data_offsets"][0])
                    return _rows(file, entry, max_values)
    raise UnsupportedModel(f"{folder}: no tensor …{SAMPLED} that can be read")


def _check_weights(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = _header(path, file)
            data_at = file.tell()
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        num_bytes = data_at + max(ends, default=0)
        if path.stat().st_size != num_bytes:
            raise UnsupportedModel(
                f"{path} has {path.stat().st_size:,} bytes and declares {num_bytes:,}; fetch it again"
            )
    except (OSError, ValueError, RecursionError, struct.error) as error:
        raise UnsupportedModel(f"{path} cannot be read: {_line(error)}") from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise UnsupportedModel(f"{path} cannot be read: its header declares no tensors") from error


def _rows(file: BinaryIO, entry: Mapping[str, Any], max_values: int) -> npt.NDArray[np.float32]:
    num_rows, num_columns = entry["shape"]
    rows = max(1, min(num_rows, max_values // num_columns))
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    stored = np.frombuffer(file.read(math.prod((rows, num_columns, dtype.itemsize))), dtype)
    if entry["dtype"] == "BF16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(stored, np.float32).reshape(rows, num_columns)


def _header(path: Path, file: BinaryIO) -> Any:  # noqa: ANN401 - JSON that somebody else wrote
    """What a safetensors file declares; leaves it where the data begin."""
    (num_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if num_bytes > _MAX_HEADER_BYTES:
        raise UnsupportedModel(f"{path} is not a safetensors file: its header would be too large")
    return json.loads(file.read(num_bytes))


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
