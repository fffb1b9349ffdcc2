"""How text is cut into words before byte-pair merges, for every `tokenizer.ggml.pre` that is known here.

The names are llama.cpp's; each stands for the cutting rules of the tokenizers that carry it. A name missing from the
table is refused by `cuda.models.gguf.tokenizer`: another cut would give other tokens, silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PreTokenizer:
    """Cutting rules applied one after the other, and what else goes with the name."""

    steps: tuple[dict[str, object], ...]
    """In tokenizer.json's form, ending with the byte-level mapping."""
    ignore_merges: bool = False
    """A word that is a token as a whole is that token, whatever merges would make of it."""
    add_bos: bool = False
    """Unless the file says otherwise."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, gpt2_words: bool) -> dict[str, object]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": gpt2_words}


_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN_WORD: Final = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*"
_TEKKEN_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_BYTES: Final = _byte_level(gpt2_words=False)
_GPT2: Final = (_byte_level(gpt2_words=True),)
_DIGITS: Final[dict[str, object]] = {"type": "Digits", "individual_digits": True}
_DIGITS_GPT2: Final = (_DIGITS, *_GPT2)
_DIGITS_BY_THREE: Final = (_split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"), _BYTES)
_DIGITS_ONE_BY_ONE: Final = (_split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"), _BYTES)
_TEKKEN: Final = (_split(rf"{_TEKKEN_WORD}|\p{{N}}|{_TEKKEN_REST}"), _BYTES)
_DEEPSEEK_CODER: Final = (
    _split(r"[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split(r"[一-龥ࠀ-一가-퟿]+"),
    _DIGITS,
    _BYTES,
)
_LLAMA3: Final = PreTokenizer(_DIGITS_BY_THREE, ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": PreTokenizer(_DIGITS_BY_THREE),
    "dbrx": PreTokenizer(_DIGITS_BY_THREE),
    "qwen2": PreTokenizer(_DIGITS_ONE_BY_ONE, nfc=True),
    "deepseek-r1-qwen": PreTokenizer(_DIGITS_ONE_BY_ONE),
    "megrez": PreTokenizer(_DIGITS_ONE_BY_ONE),
    "stablelm2": PreTokenizer(_DIGITS_ONE_BY_ONE),
    "tekken": PreTokenizer(_TEKKEN, ignore_merges=True, add_bos=True),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "smollm": PreTokenizer(_DIGITS_GPT2),
    "starcoder": PreTokenizer(_DIGITS_GPT2),
    "refact": PreTokenizer(_DIGITS_GPT2),
    "codeshell": PreTokenizer(_DIGITS_GPT2),
    "command-r": PreTokenizer(_DIGITS_GPT2),
    "gpt-2": PreTokenizer(_GPT2),
    "phi-2": PreTokenizer(_GPT2),
    "olmo": PreTokenizer(_GPT2),
    "mpt": PreTokenizer(_GPT2),
    "gigachat": PreTokenizer(_GPT2),
    "mellum": PreTokenizer(_GPT2),
}
