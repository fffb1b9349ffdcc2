"""config.json against transformers' own config objects, and one refusal for each thing that is not honoured."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from cuda.models.config import parse_spec
from cuda.models.folder import read_spec
from cuda.models.spec import ModelSpec, RopeScaling, UnsupportedModel
from tests.cuda.models.tiny import VARIANTS, Variant, tiny_config, tiny_model

CLASSES: dict[str, Any] = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_config_means_what_transformers_reads_from_it(variant: Variant, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, variant)
    assert_same(read_spec(folder), transformers.AutoConfig.from_pretrained(folder))


@pytest.mark.parametrize("family", CLASSES)
def test_absent_fields_mean_what_transformers_assumes(family: str) -> None:
    assert_same(parse_spec({"model_type": family}, ()), CLASSES[family]())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_null_kv_heads_mean_one_for_each_query_head(family: str) -> None:
    config = {"model_type": family, "num_attention_heads": 16, "num_key_value_heads": None}
    assert_same(parse_spec(config, ()), CLASSES[family](num_attention_heads=16, num_key_value_heads=None))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0},
        {"rope_theta": 1000000, "rope_scaling": None},
        {"rope_theta": 20000.0, "rope_scaling": {"type": "linear", "factor": 4}},
        {"rope_theta": 20000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}},
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        {
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,
            },
        },
    ],
)
def test_both_forms_of_rotary_settings_are_read(rope: dict[str, Any]) -> None:
    # transformers fills the given dictionaries in place, so it gets a copy.
    reference = transformers.LlamaConfig(**json.loads(json.dumps(rope)))
    assert_same(parse_spec({"model_type": "llama", **rope}, ()), reference)


def test_linear_scaling_stretches_the_context_and_llama3_does_not() -> None:
    config = {"model_type": "llama", "max_position_embeddings": 1000}
    linear = {"rope_type": "linear", "factor": 4.0}
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert parse_spec({**config, "rope_scaling": linear}, ()).max_model_len == 4000
    assert parse_spec({**config, "rope_scaling": llama3}, ()).max_model_len == 1000


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"use_sliding_window": False, "sliding_window": 64}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, 64),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 9}, None),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"] * 4}, None),
        ({"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention"] * 4}, 64),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows_hold_for_all_layers_or_none(family: str, fields: dict[str, Any], window: int | None) -> None:
    config = {"model_type": family, "num_hidden_layers": 4, **fields}
    kinds = CLASSES[family](**{name: value for name, value in config.items() if name != "model_type"}).layer_types
    assert set(kinds) == {"full_attention" if window is None else "sliding_attention"}
    assert parse_spec(config, ()).sliding_window == window


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "gemma3_text"}, "model_type is 'gemma3_text'; supported are llama, mistral, qwen2, qwen3"),
        ({"model_type": "mixtral"}, "model_type is 'mixtral'"),
        ({"model_type": ["llama"]}, "model_type is ['llama']"),
        ({"model_type": None}, "model_type is missing"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures is ['LlamaForSequenceClassification']"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported is only 'silu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is {'quant_method': 'gptq'}"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias is True"),
        ({"model_type": "qwen3", "mlp_bias": True}, "mlp_bias is True"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is ['full_attention',"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
            "layer_types is ['full_attention",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling: rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling: rope_type is 'dynamic'"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "rope_scaling: long_factor is [1.0]"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, "rope_scaling: mrope_section is [1]"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "rope_scaling: factor is -1"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "rope_scaling: low_freq_factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; an object is needed"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention is"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'; a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5"),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "num_key_value_heads is 4; it must divide"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33}, "num_attention_heads is 33; without head_dim"),
        ({"head_dim": 63}, "head_dim is 63; rotary positions need an even size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; true or false"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name_and_value(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        parse_spec({"model_type": "llama", **fields}, ())
    assert named in str(refused.value)
    assert str(refused.value).startswith("config.json: ")
    assert "\n" not in str(refused.value)


def test_an_end_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="eos_token_id 32000 is outside the vocabulary of 32000"):
        parse_spec({"model_type": "llama"}, (2, 32000))


JUNK: tuple[object, ...] = (
    None,
    "",
    "x",
    -1,
    0,
    3,
    2**40,
    2**70,
    0.5,
    -0.5,
    1e308,
    1e-300,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
)
LAYERS: tuple[object, ...] = (
    [3],
    ["full_attention"],
    {"a": 1},
    {"rope_type": "linear", "factor": 1e308},
    {"rope_type": []},
)


@pytest.mark.parametrize("variant", ["llama3_rope", "mistral", "qwen2", "qwen3"])
def test_any_value_of_any_field_is_honoured_or_refused(variant: Variant) -> None:
    config = tiny_config(variant).to_dict()
    messages: list[str] = []
    for name in (*config, "rope_scaling", "rope_theta", "layer_types", "original_max_position_embeddings"):
        for value in (*JUNK, *LAYERS):
            try:
                spec = parse_spec({**config, name: value}, ())
            except UnsupportedModel as refused:
                messages.append(str(refused))
            else:
                assert 1 <= spec.max_model_len < 2**31
    for name in config["rope_parameters"]:
        for value in (*JUNK, *LAYERS):
            with contextlib.suppress(UnsupportedModel):
                parse_spec({**config, "rope_parameters": {**config["rope_parameters"], name: value}}, ())
    assert not [message for message in messages if "\n" in message]


def assert_same(spec: ModelSpec, reference: Any) -> None:
    """Compare every number with the attribute of transformers' config that its models use."""
    rope = reference.rope_parameters
    default_head_dim = reference.hidden_size // reference.num_attention_heads
    assert (spec.num_layers, spec.hidden_size) == (reference.num_hidden_layers, reference.hidden_size)
    assert (spec.intermediate_size, spec.vocab_size) == (reference.intermediate_size, reference.vocab_size)
    assert (spec.num_heads, spec.num_kv_heads) == (reference.num_attention_heads, reference.num_key_value_heads)
    assert spec.head_dim == (getattr(reference, "head_dim", None) or default_head_dim)
    assert spec.rms_norm_eps == reference.rms_norm_eps
    assert spec.rope_theta == rope["rope_theta"]
    assert spec.rope_scaling == expected_scaling(rope)
    assert spec.tie_word_embeddings == reference.tie_word_embeddings
    assert spec.sliding_window == getattr(reference, "sliding_window", None)
    assert spec.qk_norm == (reference.model_type == "qwen3")
    assert spec.o_bias == (reference.model_type != "qwen2" and getattr(reference, "attention_bias", False))
    assert spec.qkv_bias == (reference.model_type == "qwen2" or spec.o_bias)
    assert spec.mlp_bias == getattr(reference, "mlp_bias", False)


def expected_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    match rope["rope_type"]:
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", rope["factor"])
        case kind:
            assert kind == "llama3"
            return RopeScaling(
                "llama3",
                rope["factor"],
                rope["low_freq_factor"],
                rope["high_freq_factor"],
                rope["original_max_position_embeddings"],
            )
