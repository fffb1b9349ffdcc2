"""Small tokenizers of each kind, written as model folders: what the tests' right answers come from is the library."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the end is near.",
    "Ünïcödé naïve café — “quotes” … 日本語の文章、中文句子。",
    "Emoji 😀😀👩‍👩‍👧 🇩🇪 and def f(x):\n    return x + 1  # the\n",
]
SPECIAL = ["<|start|>", "<|end|>"]
DECODERS = {
    "llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace("▁", prepend_scheme="always"),
    "metaspace_never": decoders.Metaspace("▁", prepend_scheme="never"),
}


def byte_level_folder(folder: Path) -> Path:
    """GPT-2's kind, with merges that cross and split characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 2, BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(
        [AddedToken("<plain added>", special=False), AddedToken("日本", special=False), AddedToken("é", special=False)]
    )
    return write_folder(folder, tokenizer)


def sentence_piece_folder(folder: Path, kind: str) -> Path:
    """Llama 2's kind: marks for spaces, 256 byte tokens, specials, and an empty and a bare-mark token."""
    pieces = ["▁", "▁▁", "▁the", "the", "a", "b", "ab", "▁end", "é", "日", "😀", ".", "▁a▁b", ""]
    names = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, []))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<added one>"])
    tokenizer.decoder = DECODERS[kind]
    return write_folder(folder, tokenizer)


def write_folder(folder: Path, tokenizer: Tokenizer, template: str | None = None) -> Path:
    """A model folder as far as text needs one."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>", "special": True}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
