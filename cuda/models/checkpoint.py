"""A model folder's safetensors as a decoder's weights, whole or one rank's shard: read by slices, converted and fused.

A mapped file's pages count as the process's memory once read, so files are mapped anew now and then: the peak is the
weights that are returned plus `_MAPPED_BYTES`. Read `cuda.models.layout` for what must be there and what of it a shard
reads, `cuda.models.decoder` for the result.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from cuda.models.decoder import DecoderLayer, DecoderWeights
from cuda.models.layout import EMBEDDING, LM_HEAD, check_shapes, expected_shapes, held_ranges
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec, UnsupportedModel

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAPPED_BYTES: Final = 64 << 20
_DTYPES: Final[Mapping[str, int]] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
Place = Callable[[torch.Tensor], torch.Tensor]
"""Copies a tensor to where it is kept."""


@dataclass(frozen=True)
class LinearWeight:
    """y = x @ weight.T + bias."""

    weight: torch.Tensor
    """[out, in]."""
    bias: torch.Tensor | None = None
    """[out]."""


LayerWeights = DecoderLayer[torch.Tensor, LinearWeight]
ModelWeights = DecoderWeights[torch.Tensor, LinearWeight]
"""Plain tensors, before a device packs them."""


def load_weights(  # noqa: PLR0913 - the last two have defaults
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    progress: Callable[[float], None],
    place: Place = lambda tensor: tensor,
    *,
    shard: Shard | None = None,
) -> ModelWeights:
    """Return the weights of the decoder `spec` in `folder` as `dtype`.

    Each tensor is read into the host's memory and handed to `place`; what that returns is kept, by default the same.
    With a `shard` of the decoder only what its rank holds is read. `progress` gets the fraction of values read.
    UnsupportedModel names the first tensor that is missing, not expected, or of another shape or type, and a file that
    is absent or cut short; nothing has been read then.
    """
    with _Reader(folder, spec, shard or split(spec, 1)[0], dtype, progress, place) as reader:
        embedding = LinearWeight(reader.tensor(EMBEDDING))
        return ModelWeights(
            embedding=embedding,
            layers=[_layer(reader, spec, f"model.layers.{index}") for index in range(spec.num_layers)],
            final_norm=reader.tensor("model.norm.weight"),
            lm_head=embedding if spec.tie_word_embeddings else LinearWeight(reader.tensor(LM_HEAD)),
        )


def _layer(reader: "_Reader", spec: ModelSpec, prefix: str) -> LayerWeights:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = tuple(f"{attention}.{part}_proj" for part in "qkv")
    gate_up = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
    return LayerWeights(
        input_norm=reader.tensor(f"{prefix}.input_layernorm.weight"),
        qkv=reader.linear(qkv, bias=spec.qkv_bias),
        q_norm=reader.tensor(f"{attention}.q_norm.weight") if spec.qk_norm else None,
        k_norm=reader.tensor(f"{attention}.k_norm.weight") if spec.qk_norm else None,
        o=reader.linear((f"{attention}.o_proj",), bias=spec.o_bias),
        post_attention_norm=reader.tensor(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=reader.linear(gate_up, bias=spec.mlp_bias),
        down=reader.linear((f"{mlp}.down_proj",), bias=spec.mlp_bias),
    )


class _Slice(Protocol):
    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor: ...
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    def get_slice(self, name: str) -> _Slice: ...


class _Reader:
    """Where each tensor lies, all checked, what of it is wanted, and how much has been read."""

    def __init__(  # noqa: PLR0913, PLR0917 - as `load_weights`
        self,
        folder: Path,
        spec: ModelSpec,
        shard: Shard,
        dtype: torch.dtype,
        progress: Callable[[float], None],
        place: Place,
    ) -> None:
        self._paths: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._value_bytes: dict[str, int] = {}
        self._dtype = dtype
        self._progress = progress
        self._place = place
        self._num_read = 0
        self._mapped = ExitStack()
        self._files: dict[Path, _File] = {}
        self._mapped_bytes = 0
        for path in _weight_files(folder):
            self._survey(path)
        check_shapes(self._shapes, expected_shapes(spec), str(folder))
        self._held = held_ranges(spec, shard)
        self._num_values = sum(self._size(name).numel() for name in self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._unmap()

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor with memory of its own."""
        target = torch.empty(self._size(name), dtype=self._dtype)
        self._read(name, target)
        return self._place(target)

    def linear(self, names: tuple[str, ...], *, bias: bool) -> LinearWeight:
        """Return several projections of the same input as one, rows in the order of `names`."""
        held = bias and self._size(f"{names[0]}.bias").numel() > 0
        return LinearWeight(self._fused(names, "weight"), self._fused(names, "bias") if held else None)

    def _fused(self, names: tuple[str, ...], kind: str) -> torch.Tensor:
        parts = [f"{name}.{kind}" for name in names]
        ends = list(accumulate((self._size(part)[0] for part in parts), initial=0))
        target = torch.empty((ends[-1], *self._size(parts[0])[1:]), dtype=self._dtype)
        for part, start, end in zip(parts, ends[:-1], ends[1:], strict=True):
            self._read(part, target[start:end])
        return self._place(target)

    def _size(self, name: str) -> torch.Size:
        return torch.Size(len(part) for part in self._held[name])

    def _read(self, name: str, target: torch.Tensor) -> None:
        """Read what is held of a tensor, so many rows at a time that few of the file's pages are mapped."""
        rows, *columns = self._held[name]
        row_bytes = math.prod(self._shapes[name][1:]) * self._value_bytes[name]
        step = max(1, _MAPPED_BYTES // row_bytes)
        for start in range(rows.start, rows.stop, step):
            end = min(rows.stop, start + step)
            if self._mapped_bytes + (end - start) * row_bytes > _MAPPED_BYTES:
                self._unmap()
            self._mapped_bytes += (end - start) * row_bytes
            wanted = (slice(start, end), *(slice(part.start, part.stop) for part in columns))
            target[start - rows.start : end - rows.start] = self._file(self._paths[name]).get_slice(name)[wanted]
        self._num_read += target.numel()
        self._progress(self._num_read / self._num_values)

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            self._files[path] = self._mapped.enter_context(safe_open(path, framework="pt"))
        return self._files[path]

    def _unmap(self) -> None:
        self._files.clear()
        self._mapped.close()
        self._mapped_bytes = 0

    def _survey(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - a file handle, not a mapping
                    part = file.get_slice(name)
                    if part.get_dtype() not in _DTYPES:
                        raise UnsupportedModel(
                            f"{path}: tensor {name} is {part.get_dtype()}; supported are {', '.join(_DTYPES)}"
                        )
                    self._paths[name], self._shapes[name] = path, tuple(part.get_shape())
                    self._value_bytes[name] = _DTYPES[part.get_dtype()]
        except (OSError, SafetensorError) as error:
            raise UnsupportedModel(f"{path} cannot be read: {error}") from error


def _weight_files(folder: Path) -> Iterator[Path]:
    """Name the one file, or else the files of the index."""
    index = folder / _INDEX
    if (folder / _SINGLE).is_file():
        yield folder / _SINGLE
        return
    if not index.is_file():
        raise UnsupportedModel(f"{folder} has neither {_SINGLE} nor {_INDEX}")
    try:
        paths = [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"{index} cannot be read: {error!r:.120}") from error
    for path in paths:
        if path.parent != folder:
            raise UnsupportedModel(f"{index}: weight_map names {path}, which is outside the folder")
    yield from paths


def stored_dtype(folder: Path) -> torch.dtype:
    """Type that the embedding, and so the model, is kept in; float16 counts as bfloat16, float64 as float32."""
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                if EMBEDDING in file.keys():  # noqa: SIM118 - a file handle, not a mapping
                    kept = file.get_slice(EMBEDDING).get_dtype()
                    return torch.bfloat16 if kept in {"BF16", "F16"} else torch.float32
        except (OSError, SafetensorError) as error:
            raise UnsupportedModel(f"{path} cannot be read: {error}") from error
    raise UnsupportedModel(f"{folder}: tensor {EMBEDDING} is missing")
