"""Some rows of one matrix of a model folder, without torch: enough to see how its weights pack and how fast they go.

Read `cuda.models.checkpoint` for how all of them are loaded and checked.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cuda.models.spec import UnsupportedModel

SAMPLED: Final = "mlp.gate_proj.weight"
_DTYPES: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def sample_rows(folder: Path, max_values: int) -> npt.NDArray[np.float32]:
    """[rows, E] of a feed-forward layer, `max_values` or fewer; UnsupportedModel if there is none that can be read."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            at = file.tell()
            for name, entry in header.items():
                if name.endswith(SAMPLED) and entry["dtype"] in _DTYPES:
                    file.seek(at + entry["data_offsets"][0])
                    return _rows(file, entry, max_values)
    raise UnsupportedModel(f"{folder}: no tensor …{SAMPLED} that can be read")


def _rows(file: Any, entry: Mapping[str, Any], max_values: int) -> npt.NDArray[np.float32]:  # noqa: ANN401 - JSON
    num_rows, num_columns = entry["shape"]
    rows = max(1, min(num_rows, max_values // num_columns))
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    stored = np.frombuffer(file.read(math.prod((rows, num_columns, dtype.itemsize))), dtype)
    if entry["dtype"] == "BF16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(stored, np.float32).reshape(rows, num_columns)
