"""Which incremental decoder does what a tokenizer.json's `decoder` entry says; others are refused, never approximated.

Read `byte_level` (GPT-2's alphabet: Llama 3, Qwen, SmolLM) or `sentence_piece` (Llama 2, Mistral, Gemma) next.
"""

from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

from actors.ingress.text.byte_level import ByteLevelDecoder
from actors.ingress.text.sentence_piece import SentencePieceDecoder, SentencePieceRules


class TokenStream(Protocol):
    """Decodes one token at a time. All text returned so far, then `finish()`, is `decode(all tokens)`, exactly."""

    pending: bool
    """Some text of the tokens pushed so far is not certain yet. While False: text returned so far = decode(tokens)."""

    def push(self, token: int) -> str:
        """The text that this token makes certain; often its own, sometimes "" and sometimes that of tokens before."""

    def finish(self) -> str:
        """What was still pending, as it reads if nothing follows (half a character is U+FFFD)."""


class TokenDecoder(Protocol):
    """What the streams of one tokenizer share: its table from token to text, filled on first use."""

    def stream(self) -> TokenStream:
        """A fresh stream."""


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None


def decoder_of(tokenizer: Tokenizer, document: bytes) -> TokenDecoder:
    """The decoder that tokenizer.json (`document`) declares. Raises ValueError naming what is not supported."""
    stages = _stages(msgspec.json.decode(document, type=_TokenizerFile).decoder)
    if [stage["type"] for stage in stages] == ["ByteLevel"]:
        return ByteLevelDecoder(tokenizer)
    return SentencePieceDecoder(tokenizer, _sentence_piece_rules(stages))


def _stages(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise ValueError(
            "tokenizer.json has no decoder; ByteLevel, Metaspace and SentencePiece sequences are supported"
        )
    if decoder["type"] == "Sequence":
        return [stage for inner in decoder["decoders"] for stage in _stages(inner)]
    return [decoder]


def _sentence_piece_rules(stages: list[dict[str, Any]]) -> SentencePieceRules:
    """`Metaspace` alone, or: any Replace, then ByteFallback, Fuse and a Strip on the left (each at most once)."""
    order = ["Replace", "ByteFallback", "Fuse", "Strip"]
    kinds = [stage["type"] for stage in stages]
    if kinds == ["Metaspace"]:
        return _metaspace_rules(stages[0])
    positions = [order.index(kind) if kind in order else -1 for kind in kinds]
    once = len(set(kinds)) == len([kind for kind in kinds if kind != "Replace"]) + ("Replace" in kinds)
    if -1 in positions or positions != sorted(positions) or not once or ("Strip" in kinds and "Fuse" not in kinds):
        raise ValueError(f"tokenizer.json has the decoder {' + '.join(kinds)}, which cannot be streamed")
    strip: dict[str, Any] = {"content": " ", "start": 0, "stop": 0}
    strip = next((stage for stage in stages if stage["type"] == "Strip"), strip)
    if strip["stop"]:
        raise ValueError("tokenizer.json has a decoder that strips the end of the text, which cannot be streamed")
    return SentencePieceRules(
        replacements=tuple(_replacement(stage) for stage in stages if stage["type"] == "Replace"),
        byte_fallback="ByteFallback" in kinds,
        strip_content=strip["content"],
        strip_count=strip["start"],
    )


def _metaspace_rules(stage: dict[str, Any]) -> SentencePieceRules:
    prepends = stage.get("prepend_scheme", "always" if stage.get("add_prefix_space", True) else "never") != "never"
    mark = stage["replacement"]
    return SentencePieceRules(replacements=((mark, " "),), first_replacements=((mark, ""),) if prepends else None)


def _replacement(stage: dict[str, Any]) -> tuple[str, str]:
    if "String" not in stage["pattern"]:
        raise ValueError("tokenizer.json has a decoder that replaces by a regular expression, which is not supported")
    return stage["pattern"]["String"], stage["content"]
