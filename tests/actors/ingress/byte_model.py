"""A model folder whose tokenizer is one token for each byte, so that tests write tokens as text. 256 ends a text."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from protocol.model_info import ModelInfo, SamplingDefaults

EOS = 256
VOCAB_SIZE = 260
MAX_MODEL_LEN = 200


def write_byte_model(folder: Path) -> ModelInfo:
    """Write the folder; returns what the engine would know of it."""
    tokenizer = Tokenizer(models.BPE(vocab={_letter(byte): byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }}\n{% endfor %}a:"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<end>"}))
    return ModelInfo(
        name="bytes",
        folder=str(folder),
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=(EOS,),
        defaults=SamplingDefaults(temperature=0.6, top_p=0.9, top_k=40),
        created=1_700_000_000,
    )


def tokens_of(text: str) -> list[int]:
    """By definition."""
    return list(text.encode())


def _letter(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    others = [one for one in range(256) if one not in printable]
    return chr(256 + others.index(byte))
