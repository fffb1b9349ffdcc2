"""Converted GGUF files against what transformers loads from the same file, and one refusal for each foreign setting."""

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from cuda.models.folder import prepare_model, read_spec
from cuda.models.gguf.config import hf_config
from cuda.models.gguf.convert import convert
from cuda.models.gguf.header import GgufHeader, read_header
from cuda.models.gguf.tokenizer import hf_tokenizer, hf_tokenizer_config
from cuda.models.spec import ModelSpec, RopeScaling, UnsupportedModel
from tests.cuda.models.tiny import CHAT_TEMPLATE, Variant
from tests.cuda.models.tiny_gguf import Q, tiny_gguf

GGUF_VARIANTS: tuple[Variant, ...] = ("llama", "llama_untied", "llama_bias", "qwen2", "qwen2_untied", "qwen3")


@pytest.mark.parametrize("variant", GGUF_VARIANTS)
def test_an_unquantised_file_gives_back_the_weights_it_was_made_of(variant: Variant, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, variant)
    source, tensors = load_file(tmp_path / variant / "model.safetensors"), converted_tensors(path)
    assert tensors.keys() == source.keys()
    assert all(torch.equal(tensors[name], source[name]) for name in source)


@pytest.mark.parametrize("variant", GGUF_VARIANTS)
def test_a_converted_spec_is_the_one_of_the_folder_it_was_made_of(variant: Variant, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, variant)
    spec, source = read_spec(converted(path)), read_spec(tmp_path / variant)
    # The file keeps the epsilon in single precision.
    assert spec.rms_norm_eps == float(np.float32(source.rms_norm_eps))
    assert ModelSpec(**{**vars(spec), "rms_norm_eps": source.rms_norm_eps}) == source


@pytest.mark.parametrize("encoding", [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
@pytest.mark.parametrize("variant", ["llama", "qwen2_untied", "qwen3"])
def test_quantised_weights_are_bit_for_bit_what_transformers_loads(
    variant: Variant, encoding: Any, tmp_path: Path
) -> None:
    # transformers takes Qwen3's head size to be 128, whatever the file says.
    shape: dict[str, Any] = {"head_dim": 128} if variant == "qwen3" else {}
    path = tiny_gguf(tmp_path, variant, encoding=encoding, **shape)
    model: Any = transformers.AutoModelForCausalLM
    reference = model.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    parameters = dict(reference.named_parameters())
    tensors = converted_tensors(path)
    assert tensors.keys() == parameters.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.view(torch.int32), parameters[name].detach().view(torch.int32)), name


def test_the_demos_weights_are_its_files_dequantised_with_rows_put_back(
    demo_folder: Path, demo_reader: gguf.GGUFReader
) -> None:
    tensors = load_file(demo_folder / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    reference = {tensor.name: tensor for tensor in demo_reader.tensors}
    assert len(tensors) == len(reference)
    for name, tensor in tensors.items():
        source = reference[str(names.get_name(name, try_suffixes=(".weight",)))]
        values = gguf.quants.dequantize(source.data, source.tensor_type)
        for part, num_heads in (("q_proj", 9), ("k_proj", 3)):
            if part in name:
                # Row 2i + j of a head in the file is row i + 32j of the head.
                order = [head * 64 + 2 * (row % 32) + row // 32 for head in range(num_heads) for row in range(64)]
                values = values[order]
        assert np.array_equal(values.view(np.int32), tensor.numpy().view(np.int32)), name


@pytest.mark.slow
def test_the_demos_weights_are_bit_for_bit_what_transformers_loads(demo_folder: Path, demo_file: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM
    reference = model.from_pretrained(demo_file.parent, gguf_file=demo_file.name, dtype=torch.float32)
    tensors = load_file(demo_folder / "model.safetensors")
    parameters = dict(reference.named_parameters())
    assert tensors.keys() == parameters.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.view(torch.int32), parameters[name].detach().view(torch.int32)), name


def test_the_demos_config_is_what_its_header_declares(demo_folder: Path) -> None:
    spec = read_spec(demo_folder)
    assert (spec.family, spec.num_layers, spec.hidden_size, spec.intermediate_size) == ("llama", 30, 576, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (9, 3, 64, 49152)
    assert (spec.rope_theta, spec.rope_scaling, spec.max_model_len) == (100000.0, None, 8192)
    assert (spec.eos_token_ids, spec.tie_word_embeddings) == ((2,), True)


def test_a_converted_folder_answers_like_transformers_on_the_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "llama_bias")
    model: Any = transformers.AutoModelForCausalLM
    ours = model.from_pretrained(converted(path), dtype=torch.float32)
    theirs = model.from_pretrained(tmp_path / "llama_bias", dtype=torch.float32)
    tokens = torch.arange(40)[None]
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_linear_scaling_is_honoured(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    spec = read_spec(converted(tiny_gguf(tmp_path, metadata=metadata)))
    assert (spec.rope_scaling, spec.max_model_len) == (RopeScaling("linear", 4.0), 2048)


@pytest.mark.parametrize(("factor", "theta"), [(8.0, 500000.0), (32.0, 500000.0), (4.0, 10000.0)])
def test_llama3_scaling_is_recognised_by_its_tensor(factor: float, theta: float, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = rope_factors(scaling, head_dim=128)
    shape: dict[str, Any] = {"hidden_size": 512, "head_dim": 128, "num_hidden_layers": 1}
    metadata = {"llama.rope.freq_base": theta}
    path = tiny_gguf(tmp_path, extra_tensors={"rope_freqs.weight": factors}, metadata=metadata, **shape)
    assert read_spec(converted(path)).rope_scaling == RopeScaling("llama3", factor, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "factors",
    [np.linspace(1, 3, 8), np.zeros(8), np.full(8, np.nan), np.full(8, np.inf), np.full(4, 8.0), np.full((2, 4), 8.0)],
)
def test_frequencies_of_another_law_are_refused(factors: np.ndarray[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight is not Llama 3\.1's scaling"):
        converted(tiny_gguf(tmp_path, extra_tensors={"rope_freqs.weight": factors.astype(np.float32)}))


def test_frequencies_of_one_mean_no_scaling(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert read_spec(converted(tiny_gguf(tmp_path, extra_tensors=factors))).rope_scaling is None


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "gemma2"}, "general.architecture is 'gemma2'; supported are llama, qwen2, qwen3"),
        ({"general.architecture": "qwen2moe"}, "general.architecture is 'qwen2moe'"),
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
        ({"split.count": 3}, "split.count is 3"),
        ({"llama.expert_count": 8}, "llama: expert_count is 8"),
        ({"llama.attention.sliding_window": 512}, "llama: attention.sliding_window is 512"),
        ({"llama.logit_scale": 0.5}, "llama: logit_scale is 0.5"),
        ({"llama.attention.clamp_kqv": 8.0}, "llama: attention.clamp_kqv is 8.0; this setting is not supported"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "rope.scaling.type is 'yarn'"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor is 1.5; this setting is not supported"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8; supported is only the head size (16)"),
        ({"llama.attention.value_length": 32}, "attention.value_length is 32"),
        ({"llama.attention.key_length": 32, "llama.attention.value_length": None}, "rope.dimension_count is 16"),
        ({"llama.vocab_size": 400}, "vocab_size is 400; token_embd.weight has 384 rows"),
        ({"llama.attention.head_count_kv": [2, 2]}, "attention.head_count_kv is [2, 2]"),
        ({"llama.attention.head_count": None}, "attention.head_count is missing"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.context_length": None}, "context_length is missing"),
        ({"llama.block_count": 3}, "tensor model.layers.2.input_layernorm.weight [64] is missing"),
        ({"llama.block_count": 1}, "tensor model.layers.1."),
        ({"llama.feed_forward_length": 96}, "mlp.gate_proj.weight is [128, 64]; its config says [96, 64]"),
        ({"tokenizer.ggml.pre": "newest-bpe"}, "tokenizer.ggml: pre is 'newest-bpe'; supported are"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml: pre is missing"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml: model is 'bert'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml: model is missing"),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token is True"),
        ({"tokenizer.ggml.merges": ["Q Z"]}, "merges has 'Q Z'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        (
            {"tokenizer.ggml.tokens": [str(token) for token in range(385)]},
            "there are 385 tokens; token_embd.weight has",
        ),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "tokenizer.ggml.tokens has 'a' twice"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type is missing or does not go with the 384 tokens"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 999}, "bos_token_id is 999"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "bos_token_id is missing"),
        ({"tokenizer.chat_template": 7}, "tokenizer.chat_template is 7; text is needed"),
    ],
)
def test_what_the_header_declares_is_honoured_or_refused_by_name(
    metadata: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = tiny_gguf(tmp_path, metadata=metadata)
    with pytest.raises(UnsupportedModel) as refused:
        converted(path)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("token_embd.weight", "tensor token_embd.weight is missing"),
        ("blk.1.attn_v.weight", "tensor model.layers.1.self_attn.v_proj.weight [32, 64] is missing"),
        ("output_norm.weight", "tensor model.norm.weight [64] is missing"),
    ],
)
def test_a_missing_tensor_is_named(name: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        converted(tiny_gguf(tmp_path, drop=(name,)))
    assert named in str(refused.value)


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "position_embd.weight", "blk.0.attn_sinks.weight", "x"])
def test_a_tensor_of_another_decoder_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"GGUF tensor {name} is not part of a supported dense decoder"):
        converted(tiny_gguf(tmp_path, extra_tensors={name: np.ones((2, 2), np.float32)}))


def test_an_encoding_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    data = bytearray(path.read_bytes())
    place = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    assert int.from_bytes(data[place : place + 4], "little") == Q.F32
    data[place : place + 4] = int(Q.I32).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel, match=r"GGUF tensor output_norm\.weight is encoded as I32: not supported"):
        converted(path)


def test_end_tokens_of_turn_and_message_count_too(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2}
    folder = converted(tiny_gguf(tmp_path, metadata=metadata))
    assert read_spec(folder).eos_token_ids == (2, 1)
    assert json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == [2, 1]


def test_the_chat_template_and_special_tokens_are_kept(tmp_path: Path) -> None:
    folder = converted(tiny_gguf(tmp_path))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["chat_template"] == CHAT_TEMPLATE
    tokens = [settings[f"{name}_token"] for name in ("bos", "eos", "pad")]
    assert tokens == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


JUNK: tuple[object, ...] = (None, "", "x", -1, 0, 3, 2**40, 0.5, -0.5, 1e30, float("nan"), True, [], [0], [0.5], ["x"])


def test_any_value_of_any_entry_is_honoured_or_refused(tmp_path: Path) -> None:
    header = read_header(tiny_gguf(tmp_path))
    messages: list[str] = []
    for key in (*header.metadata, "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.scores"):
        for value in JUNK:
            metadata = {**header.metadata, key: value}
            try:
                config = hf_config(GgufHeader(metadata, header.tensors), np.full(8, 8, np.float32))
                json.dumps([config, hf_tokenizer(metadata), hf_tokenizer_config(metadata)])
            except UnsupportedModel as refused:
                messages.append(str(refused))
    assert messages
    assert not [message for message in messages if "\n" in message]


def test_damaged_files_end_in_the_documented_error_or_are_converted(tmp_path: Path) -> None:
    whole = tiny_gguf(tmp_path, encoding=Q.Q8_0).read_bytes()
    path, out = tmp_path / "damaged.gguf", tmp_path / "out"
    out.mkdir()
    draw = random.Random(11)
    refused = 0
    for _ in range(150):
        data = bytearray(whole[: draw.randrange(1, len(whole))] if draw.random() < 0.2 else whole)
        for _ in range(draw.randrange(1, 5)):
            data[draw.randrange(min(14_000, len(data)))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            convert(path, out, lambda _fraction: None)
        except UnsupportedModel:
            refused += 1
    assert refused > 50


@pytest.mark.usefixtures("cache")
def test_a_converted_file_is_a_model_like_any_other(tmp_path: Path) -> None:
    folder = prepare_model(str(tiny_gguf(tmp_path, "qwen3")))
    assert prepare_model(str(folder)) == folder
    assert read_spec(folder).qk_norm


def converted(path: Path) -> Path:
    folder = path.parent / "out"
    folder.mkdir()
    fractions: list[float] = []
    convert(path, folder, fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    return folder


def converted_tensors(path: Path) -> dict[str, torch.Tensor]:
    return load_file(converted(path) / "model.safetensors")


def rope_factors(scaling: dict[str, Any], head_dim: int) -> Any:
    """How much transformers slows each frequency down: what llama.cpp's converter stores."""
    config = transformers.LlamaConfig(hidden_size=head_dim, num_attention_heads=1, rope_parameters=dict(scaling))
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]
    slowed, _ = compute(config, torch.device("cpu"))
    plain = 1.0 / scaling["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return (plain / slowed).numpy().astype(np.float32)
