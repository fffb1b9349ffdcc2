"""A model folder's safetensors as ModelWeights: every tensor read alone, checked, converted and fused.

Owns the names and shapes that a folder must hold, and refuses missing, left-over and mis-shaped tensors. Files stay
memory-mapped: the peak is the weights plus one tensor. Read `cuda.models.weights` for the result's layout.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from cuda.models.spec import ModelSpec, UnsupportedModel
from cuda.models.weights import LayerWeights, LinearWeight, ModelWeights

# Buffers that old checkpoints carry and that follow from the configuration.
_IGNORED: Final = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
_INDEX: Final = "model.safetensors.index.json"


def load_weights(folder: Path, spec: ModelSpec, dtype: torch.dtype, progress: Callable[[float], None]) -> ModelWeights:
    """Return the weights of the decoder `spec` in `folder`, on the CPU, as `dtype`.

    `progress` gets the fraction of values read. UnsupportedModel names the first tensor that is missing, not
    expected, or of another shape, and a file that is cut short or absent.
    """
    with Checkpoint(folder, dtype, progress) as checkpoint:
        checkpoint.check(_expected_shapes(spec))
        embedding = checkpoint.tensor("model.embed_tokens.weight")
        return ModelWeights(
            embedding=embedding,
            layers=[_layer(checkpoint, spec, f"model.layers.{index}") for index in range(spec.num_layers)],
            final_norm=checkpoint.tensor("model.norm.weight"),
            lm_head=LinearWeight(embedding if spec.tie_word_embeddings else checkpoint.tensor("lm_head.weight")),
        )


def _layer(checkpoint: "Checkpoint", spec: ModelSpec, prefix: str) -> LayerWeights:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = tuple(f"{attention}.{part}_proj" for part in "qkv")
    gate_up = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
    return LayerWeights(
        input_norm=checkpoint.tensor(f"{prefix}.input_layernorm.weight"),
        qkv=checkpoint.linear(qkv, bias=spec.qkv_bias),
        q_norm=checkpoint.tensor(f"{attention}.q_norm.weight") if spec.qk_norm else None,
        k_norm=checkpoint.tensor(f"{attention}.k_norm.weight") if spec.qk_norm else None,
        o=checkpoint.linear((f"{attention}.o_proj",), bias=spec.o_bias),
        post_attention_norm=checkpoint.tensor(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=checkpoint.linear(gate_up, bias=spec.mlp_bias),
        down=checkpoint.linear((f"{mlp}.down_proj",), bias=spec.mlp_bias),
    )


def _expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, feed_forward = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    linears = {
        "self_attn.q_proj": (q_rows, hidden, spec.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, q_rows, spec.o_bias),
        "mlp.gate_proj": (feed_forward, hidden, spec.mlp_bias),
        "mlp.up_proj": (feed_forward, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, feed_forward, spec.mlp_bias),
    }
    for prefix in (f"model.layers.{index}" for index in range(spec.num_layers)):
        shapes[f"{prefix}.input_layernorm.weight"] = shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        if spec.qk_norm:
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (spec.head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (spec.head_dim,)
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
    return shapes


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


class Checkpoint:
    """The open safetensors files of a folder, by tensor name."""

    def __init__(self, folder: Path, dtype: torch.dtype, progress: Callable[[float], None]) -> None:
        self._folder = folder
        self._dtype = dtype
        self._progress = progress
        self._stack = ExitStack()
        self._files: dict[str, _File] = {}
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._num_values = 0
        self._num_read = 0

    def __enter__(self) -> Self:
        try:
            for path in _weight_files(self._folder):
                file: _File = self._stack.enter_context(_opened(path))
                self._files.update(dict.fromkeys(file.keys(), file))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._files.clear()
        self._stack.close()

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compare what is there with what must be, before anything is read."""
        for name, shape in shapes.items():
            if name not in self._files:
                raise UnsupportedModel(f"{self._folder}: tensor {name} {list(shape)} is missing")
            found = self._files[name].get_slice(name)
            if tuple(found.get_shape()) != shape:
                raise UnsupportedModel(
                    f"{self._folder}: tensor {name} is {found.get_shape()}; config.json says {list(shape)}"
                )
            if found.get_dtype() not in ("F64", "F32", "F16", "BF16"):
                raise UnsupportedModel(
                    f"{self._folder}: tensor {name} is {found.get_dtype()}; supported are F64, F32, F16 and BF16"
                )
        for name in self._files.keys() - shapes.keys():
            if not name.endswith(_IGNORED) and name != "lm_head.weight":
                shape = tuple(self._files[name].get_slice(name).get_shape())
                raise UnsupportedModel(f"{self._folder}: tensor {name} {list(shape)} is not part of this decoder")
        self._shapes = shapes
        self._num_values = sum(torch.Size(shape).numel() for shape in shapes.values())

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of its own, free of the file."""
        target = torch.empty(self._shapes[name], dtype=self._dtype)
        self._read(name, target)
        return target

    def linear(self, names: tuple[str, ...], *, bias: bool) -> LinearWeight:
        """Return several projections of the same input as one, rows in the order of `names`."""
        return LinearWeight(self._fused(names, "weight"), self._fused(names, "bias") if bias else None)

    def _fused(self, names: tuple[str, ...], kind: str) -> torch.Tensor:
        parts = [f"{name}.{kind}" for name in names]
        rows = [self._shapes[part][0] for part in parts]
        target = torch.empty((sum(rows), *self._shapes[parts[0]][1:]), dtype=self._dtype)
        for part, place in zip(parts, target.split(rows), strict=True):
            self._read(part, place)
        return target

    def _read(self, name: str, target: torch.Tensor) -> None:
        target.copy_(self._files[name].get_tensor(name))
        self._num_read += target.numel()
        self._progress(self._num_read / self._num_values)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {error}") from error


def _weight_files(folder: Path) -> Iterator[Path]:
    """Name the files of the index, or the one file without an index."""
    index = folder / _INDEX
    if not index.is_file():
        yield folder / "model.safetensors"
        return
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        paths = [folder / name for name in sorted(names)]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"{index} cannot be read: {error!r:.120}") from error
    for path in paths:
        if path.resolve().parent != folder.resolve():
            raise UnsupportedModel(f"{index}: weight_map names {path}, which is outside the folder")
    yield from paths
