"""Weights as transformers loads them from the same folder, and one clear error for each way a folder can be wrong."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cuda.models.checkpoint import LayerWeights, LinearWeight, ModelWeights, load_weights, stored_dtype
from cuda.models.folder import read_spec
from cuda.models.shard import Shard, split
from cuda.models.spec import ModelSpec, UnsupportedModel
from tests.cuda.models.tiny import VARIANTS, Variant, reference_model, tiny_model

Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_loads_bit_for_bit_what_transformers_loads(
    variant: Variant, tmp_path: Path, *, sharded: bool
) -> None:
    folder = tiny_model(tmp_path, variant, sharded=sharded)
    assert (folder / "model.safetensors.index.json").exists() == sharded
    assert_same(loaded(folder), dict(reference_model(folder).named_parameters()))


def test_a_tied_head_shares_the_embedding(tmp_path: Path) -> None:
    weights = loaded(tiny_model(tmp_path, "llama"))
    assert weights.lm_head.weight is weights.embedding.weight
    untied = loaded(tiny_model(tmp_path, "llama_untied"))
    assert not torch.equal(untied.lm_head.weight, untied.embedding.weight)


def test_weights_are_converted_to_the_asked_type(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "qwen2")
    parameters = dict(reference_model(folder).bfloat16().named_parameters())
    assert_same(loaded(folder, torch.bfloat16), parameters)


def test_each_tensor_is_placed_once_and_only_the_placed_one_is_kept(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama_bias")
    placed: list[int] = []

    def place(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        placed.append(copy.data_ptr())
        return copy

    weights = load_weights(folder, read_spec(folder), torch.float32, lambda _: None, place)
    assert_same(weights, dict(reference_model(folder).named_parameters()))
    kept = [weights.embedding.weight, weights.final_norm, weights.layers[0].qkv.weight, weights.layers[1].down.bias]
    assert all(tensor is not None and tensor.data_ptr() in placed for tensor in kept)
    assert len(placed) == len(set(placed)) == 3 + 2 * (2 + 2 * 4)


@pytest.mark.parametrize(("kept", "dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")])
def test_the_stored_type_is_read_from_the_files(tmp_path: Path, kept: str, dtype: str) -> None:
    folder = tiny_model(tmp_path, "llama", sharded=True)
    for path in folder.glob("*.safetensors"):
        save_file({name: tensor.to(getattr(torch, kept)) for name, tensor in load_file(path).items()}, path)
    assert stored_dtype(folder) == getattr(torch, dtype)


def test_half_precision_files_are_widened(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "qwen3")
    rewrite(folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert_same(loaded(folder), dict(reference_model(folder).named_parameters()))


def test_progress_grows_to_one(tmp_path: Path) -> None:
    fractions: list[float] = []
    folder = tiny_model(tmp_path, "llama_bias", sharded=True)
    load_weights(folder, read_spec(folder), torch.float32, fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_loaded_weights_do_not_depend_on_the_file(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    before = copied(reference_model(folder))
    weights = loaded(folder)
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(bytes(size))
    assert_same(weights, before)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("variant", ["llama_bias", "qwen2_untied", "qwen3"])
def test_the_shards_of_all_ranks_are_the_model(variant: Variant, world_size: int, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, variant, head_dim=32, sharded=True)
    spec = read_spec(folder)
    whole = loaded(folder)
    fractions: list[float] = []
    for shard in split(spec, world_size):
        part = load_weights(folder, spec, torch.float32, fractions.append, shard=shard)
        tokens = list(shard.vocabulary)
        assert torch.equal(part.embedding.weight, whole.embedding.weight[tokens])
        assert torch.equal(part.lm_head.weight, whole.lm_head.weight[tokens])
        assert (part.lm_head.weight is part.embedding.weight) == spec.tie_word_embeddings
        assert torch.equal(part.final_norm, whole.final_norm)
        for own, layer in zip(part.layers, whole.layers, strict=True):
            assert_shard(own, layer, spec, shard)
        assert fractions[-1] == 1.0


def assert_shard(own: LayerWeights, whole: LayerWeights, spec: ModelSpec, shard: Shard) -> None:
    """Pick the shard's rows and columns out of the whole layer one by one."""
    dim, features = spec.head_dim, spec.intermediate_size
    queries = [head * dim + i for head in shard.heads for i in range(dim)]
    keys = [(spec.num_heads + head) * dim + i for head in shard.kv_heads for i in range(dim)]
    values = [row + spec.num_kv_heads * dim for row in keys]
    both = [half * features + feature for half in range(2) for feature in shard.features]
    assert_rows(own.qkv, whole.qkv, [*queries, *keys, *values])
    assert_rows(own.gate_up, whole.gate_up, both)
    for ours, theirs, columns in ((own.o, whole.o, queries), (own.down, whole.down, list(shard.features))):
        assert torch.equal(ours.weight, theirs.weight[:, columns])
        assert (ours.bias is not None) == (theirs.bias is not None and shard.rank == 0)
        if ours.bias is not None and theirs.bias is not None:
            assert torch.equal(ours.bias, theirs.bias)
    for norm in ("input_norm", "post_attention_norm", "q_norm", "k_norm"):
        ours_norm, theirs_norm = getattr(own, norm), getattr(whole, norm)
        assert theirs_norm is None or torch.equal(ours_norm, theirs_norm)


def assert_rows(own: LinearWeight, whole: LinearWeight, rows: list[int]) -> None:
    assert torch.equal(own.weight, whole.weight[rows])
    assert (own.bias is None) == (whole.bias is None)
    if own.bias is not None and whole.bias is not None:
        assert torch.equal(own.bias, whole.bias[rows])


MEASURE = """
import sys, torch
from pathlib import Path
from cuda.models.checkpoint import load_weights
from cuda.models.folder import read_spec
from cuda.models.shard import split

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

folder = Path(sys.argv[1])
spec = read_spec(folder)
torch.zeros(8).bfloat16().float()
before = peak()
load_weights(folder, spec, torch.float32, lambda _done: None, shard=split(spec, 4)[int(sys.argv[2])])
print(peak() - before)
"""


def test_a_ranks_peak_memory_is_its_shard_and_a_window_of_the_file(tmp_path: Path) -> None:
    folder = tiny_model(
        tmp_path, "llama_untied", vocab_size=16384, hidden_size=1024, intermediate_size=8192, num_hidden_layers=2,
        num_attention_heads=16, num_key_value_heads=8, head_dim=64,
    )  # fmt: skip
    size = (folder / "model.safetensors").stat().st_size
    window, slack = 64 << 20, 16 << 20
    assert size / 4 + window + slack < 0.55 * size
    for rank in (0, 3):
        command = [sys.executable, "-c", MEASURE, str(folder), str(rank)]
        measured = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert size / 4 < measured < size / 4 + window + slack


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop("model.norm.weight"), "tensor model.norm.weight [64] is missing"),
        (drop("model.layers.1.mlp.up_proj.weight"), "tensor model.layers.1.mlp.up_proj.weight [128, 64] is missing"),
        (drop("lm_head.weight"), "tensor lm_head.weight [384, 64] is missing"),
        (
            put("model.layers.0.self_attn.q_proj.weight", torch.zeros(64, 64)),
            "tensor model.layers.0.self_attn.q_proj.weight is [64, 64]; its config says [128, 64]",
        ),
        (
            put("model.layers.0.self_attn.q_proj.bias", torch.zeros(128)),
            "q_proj.bias [128] is not part of this decoder",
        ),
        (put("model.layers.2.input_layernorm.weight", torch.ones(64)), "layers.2.input_layernorm.weight [64] is not"),
        (put("model.norm.weight", torch.ones(64, dtype=torch.int8)), "tensor model.norm.weight is I8; supported are"),
        (
            put("model.norm.weight", torch.ones(64).to(torch.float8_e4m3fn)),
            "tensor model.norm.weight is F8_E4M3; supported are F64, F32, F16, BF16",
        ),
    ],
)
def test_a_wrong_tensor_is_named_with_its_shape(
    change: Callable[[Tensors], Tensors], named: str, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path, "llama_untied")
    rewrite(folder, change)
    with pytest.raises(UnsupportedModel) as refused:
        loaded(folder)
    assert named in str(refused.value)


def test_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    before = copied(reference_model(folder))
    rewrite(folder, put("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(8)))
    assert_same(loaded(folder), before)


@pytest.mark.parametrize(
    ("index", "named"),
    [
        ("{", "index.json cannot be read"),
        ("[]", "index.json cannot be read"),
        ('{"weight_map": {"a": 1}}', "index.json cannot be read"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "outside the folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors cannot be read"),
        ("[" * 100_000, "index.json cannot be read"),
    ],
)
def test_a_broken_index_is_refused(index: str, named: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama", sharded=True)
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=named):
        loaded(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"has neither model\.safetensors nor"):
        loaded(folder)


def test_cut_or_scrambled_files_end_in_the_documented_error_or_load(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    path, spec = folder / "model.safetensors", read_spec(folder)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(5)
    damaged = [whole[: draw.randrange(len(whole))] for _ in range(60)]
    for _ in range(200):
        scrambled = bytearray(whole)
        scrambled[draw.randrange(header)] = draw.randrange(256)
        damaged.append(bytes(scrambled))
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            load_weights(folder, spec, torch.float32, lambda _fraction: None)
        except UnsupportedModel:
            refused += 1
    assert refused > 200


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return load_weights(folder, read_spec(folder), dtype, lambda _fraction: None)


def copied(model: Any) -> Tensors:
    """Copy the parameters: transformers' own stay mapped to the file."""
    return {name: parameter.clone() for name, parameter in model.named_parameters()}


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def assert_same(weights: ModelWeights, parameters: dict[str, Any]) -> None:
    """Compare every parameter of the reference with its place in the fused weights."""
    same(weights.embedding.weight, parameters.pop("model.embed_tokens.weight"))
    same(weights.final_norm, parameters.pop("model.norm.weight"))
    same(weights.lm_head.weight, parameters.pop("lm_head.weight", weights.embedding.weight))
    for index, layer in enumerate(weights.layers):
        own = {
            name.removeprefix(f"model.layers.{index}."): parameters.pop(name)
            for name in list(parameters)
            if name.startswith(f"model.layers.{index}.")
        }
        same(layer.input_norm, own.pop("input_layernorm.weight"))
        same(layer.post_attention_norm, own.pop("post_attention_layernorm.weight"))
        same_linear(layer.qkv, [f"self_attn.{part}_proj" for part in ("q", "k", "v")], own)
        same_linear(layer.o, ["self_attn.o_proj"], own)
        same_linear(layer.gate_up, ["mlp.gate_proj", "mlp.up_proj"], own)
        same_linear(layer.down, ["mlp.down_proj"], own)
        for norm, name in ((layer.q_norm, "self_attn.q_norm.weight"), (layer.k_norm, "self_attn.k_norm.weight")):
            if norm is not None:
                same(norm, own.pop(name))
        assert not own
    assert not parameters


def same_linear(linear: LinearWeight, names: list[str], own: Tensors) -> None:
    same(linear.weight, torch.cat([own.pop(f"{name}.weight") for name in names]))
    biases = [own.pop(f"{name}.bias") for name in names if f"{name}.bias" in own]
    assert (linear.bias is None) == (not biases)
    if linear.bias is not None:
        same(linear.bias, torch.cat(biases))


def same(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    assert tensor.dtype == expected.dtype
    assert torch.equal(tensor, expected)
