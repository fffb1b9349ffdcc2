"""A model folder's safetensors as ModelWeights: every tensor read alone, converted and fused.

A mapped file's pages count as the process's memory once read, so files are mapped anew now and then: the peak is the
weights plus `_MAPPED_BYTES` and one tensor. Read `cuda.models.layout` for what must be there, `cuda.models.weights`
for the result.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from cuda.models.layout import LM_HEAD, check_shapes, expected_shapes
from cuda.models.spec import ModelSpec, UnsupportedModel
from cuda.models.weights import LayerWeights, LinearWeight, ModelWeights

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAPPED_BYTES: Final = 64 << 20
_DTYPES: Final = ("F64", "F32", "F16", "BF16")


def load_weights(folder: Path, spec: ModelSpec, dtype: torch.dtype, progress: Callable[[float], None]) -> ModelWeights:
    """Return the weights of the decoder `spec` in `folder`, on the CPU, as `dtype`.

    `progress` gets the fraction of values read. UnsupportedModel names the first tensor that is missing, not
    expected, or of another shape or type, and a file that is absent or cut short; nothing has been read then.
    """
    with _Reader(folder, spec, dtype, progress) as reader:
        embedding = reader.tensor("model.embed_tokens.weight")
        return ModelWeights(
            embedding=embedding,
            layers=[_layer(reader, spec, f"model.layers.{index}") for index in range(spec.num_layers)],
            final_norm=reader.tensor("model.norm.weight"),
            lm_head=LinearWeight(embedding if spec.tie_word_embeddings else reader.tensor(LM_HEAD)),
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


class _File(Protocol):
    def get_tensor(self, name: str) -> torch.Tensor: ...


class _Reader:
    """Where each tensor lies, all checked, and how much has been read."""

    def __init__(self, folder: Path, spec: ModelSpec, dtype: torch.dtype, progress: Callable[[float], None]) -> None:
        self._paths: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtype = dtype
        self._progress = progress
        self._num_read = 0
        self._mapped = ExitStack()
        self._files: dict[Path, _File] = {}
        self._mapped_bytes = 0
        for path in _weight_files(folder):
            self._survey(path)
        expected = expected_shapes(spec)
        check_shapes(self._shapes, expected, str(folder))
        self._num_values = sum(torch.Size(shape).numel() for shape in expected.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._unmap()

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor with memory of its own."""
        target = torch.empty(self._shapes[name], dtype=self._dtype)
        self._read(name, target)
        return target

    def linear(self, names: tuple[str, ...], *, bias: bool) -> LinearWeight:
        """Return several projections of the same input as one, rows in the order of `names`."""
        return LinearWeight(self._fused(names, "weight"), self._fused(names, "bias") if bias else None)

    def _fused(self, names: tuple[str, ...], kind: str) -> torch.Tensor:
        parts = [f"{name}.{kind}" for name in names]
        num_rows = sum(self._shapes[part][0] for part in parts)
        target = torch.empty((num_rows, *self._shapes[parts[0]][1:]), dtype=self._dtype)
        end = 0
        for part in parts:
            start, end = end, end + self._shapes[part][0]
            self._read(part, target[start:end])
        return target

    def _read(self, name: str, target: torch.Tensor) -> None:
        path = self._paths[name]
        if path not in self._files:
            self._files[path] = self._mapped.enter_context(safe_open(path, framework="pt"))
        source = self._files[path].get_tensor(name)
        target.copy_(source)
        self._mapped_bytes += source.nbytes
        if self._mapped_bytes > _MAPPED_BYTES:
            self._unmap()
        self._num_read += target.numel()
        self._progress(self._num_read / self._num_values)

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
