"""Tiny random Hugging Face model folders, one variant for everything a family can differ in, for any test to load.

Weights are drawn wide enough that greedy text wanders and every bias and norm matters; the same arguments give
the same folder, complete: config.json, generation_config.json, safetensors, tokenizer.json and a ChatML chat template.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

Variant = Literal[
    "llama",
    "llama_untied",
    "llama3_rope",
    "linear_rope",
    "llama_bias",
    "mistral",
    "qwen2",
    "qwen2_untied",
    "qwen3",
]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_AUTO: Any = transformers.AutoModelForCausalLM
VOCAB_SIZE = 384
MAX_POSITIONS = 512
SLIDING_WINDOW = 24
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CONFIGS: Mapping[Variant, tuple[type[Any], dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "llama_untied": (transformers.LlamaConfig, {"tie_word_embeddings": False, "head_dim": 32}),
    "llama3_rope": (
        transformers.LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "linear_rope": (
        transformers.LlamaConfig,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama_bias": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": SLIDING_WINDOW}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2_untied": (transformers.Qwen2Config, {"tie_word_embeddings": False}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
}


def tiny_model(
    folder: Path, variant: Variant = "llama", *, seed: int = 0, sharded: bool = False, **overrides: Any
) -> Path:
    """Write a 2-layer model (E 64, F 128, H 4, K 2, V 384) into `folder/variant` and return that folder.

    `overrides` are fields of the variant's transformers config. `sharded` splits the weights over several files.
    """
    path = folder / (variant + ("_sharded" if sharded else ""))
    config = tiny_config(variant, **overrides)
    model: Any = _AUTO.from_config(config)
    _randomise(model, seed)
    model.save_pretrained(path, max_shard_size=100_000 if sharded else "1GB")
    write_tokenizer(path)
    return path


def tiny_config(variant: Variant, **overrides: Any) -> Any:
    """Return the transformers config that `tiny_model` saves."""
    make, fields = _CONFIGS[variant]
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    return make(**{**shape, **fields, **overrides})


def reference_model(folder: Path) -> Any:
    """Return the same folder as transformers loads it: fp32, eager attention, no gradients."""
    model = _AUTO.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval().requires_grad_(False)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of V 384: 3 special tokens, 256 bytes, and merges learnt from a few sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * 1.5 * weight.shape[-1] ** -0.5)
            elif name.endswith("bias"):
                weight.copy_(noise * 0.3)
            else:
                weight.copy_(1 + noise * 0.2)


_SENTENCES = [
    "The quick brown fox jumps over the lazy dog while the other dogs are watching the river.",
    "A scheduler decides which requests share the next step, and the worker executes that step.",
    "In 2024 there were 365 days and another one; 1 + 1 = 2, and the list goes on: a, b, c.",
    "def add(left, right):\n    return left + right\n\nprint(add(1, 2))\n",
    "Grüße aus Köln! Les élèves étudient près de la forêt. こんにちは世界。你好世界。 😀🎉",
]
