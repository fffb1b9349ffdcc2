"""The text side of a served model: encode a prompt or a chat, decode tokens, open an incremental stream.

Owns the tokenizer and the chat template, read once from the model folder; never changed after, so every thread may
use one TextModel at once (long texts are encoded without the GIL). Which incremental decoder does what a
tokenizer.json's `decoder` entry says is chosen here; others are refused, never approximated: see `byte_level` (GPT-2's
alphabet: Llama 3, Qwen, SmolLM) and `sentence_piece` (Llama 2, Mistral, Gemma). Read `output` next.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

from actors.ingress.text.byte_level import ByteLevelStream, ByteTable
from actors.ingress.text.chat import ChatTemplate
from actors.ingress.text.decoding import PieceTable, SentencePieceRules, SentencePieceStream
from protocol.errors import RequestError
from protocol.wire import ChatMessage

LONG_CHARS = 16_384
"""`Tokenizer.encode` holds the GIL to its end, seconds for megabytes. Its batches do not, but run on threads shared by
all, where a short text would wait for long ones."""


class TokenStream(Protocol):
    """Decodes one token at a time. All text returned so far, then `finish()`, is `decode(all tokens)`, exactly."""

    pending: bool
    """Some text of the tokens pushed so far is not certain yet. While False: text returned so far = decode(tokens)."""

    def push(self, token: int) -> str:
        """The text that this token makes certain; often its own, sometimes "" and sometimes that of tokens before."""

    def finish(self) -> str:
        """What was still pending, as it reads if nothing follows (half a character is U+FFFD)."""


class TextModel:
    """Made by `load`. What `transformers` gives for the same folder is right, spelled out at each method."""

    def __init__(
        self, tokenizer: Tokenizer, open_stream: Callable[[], TokenStream], template: ChatTemplate | None
    ) -> None:
        self.open_stream = open_stream
        """A fresh incremental decoder, for one request."""
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def load(cls, folder: str | Path) -> "TextModel":
        """Read `tokenizer.json` and the chat template of a model folder.

        Raises FileNotFoundError without a tokenizer.json, ValueError for a tokenizer that cannot be read or decoded
        incrementally, or a template with a syntax error.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: a model folder needs a tokenizer.json to serve text")
        document = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_buffer(document)
        except ValueError as error:
            raise ValueError(f"{path} is not a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, _decoder_of(tokenizer, document), ChatTemplate.load(Path(folder)))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's own table may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: FBT001, FBT002 - transformers' name
        """Token ids of a plain prompt; with `add_special_tokens` a tokenizer that begins texts with BOS does so.

        Names of special tokens within the text become those tokens, as everywhere in the field.
        Raises RequestError for text that is no Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"text holds a lone surrogate at character {error.start}; it cannot be encoded"
            raise RequestError("invalid_request", message, param="prompt") from error
        if len(text) <= LONG_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        The rendered chat is encoded without the tokenizer's own special tokens (the template writes BOS itself). Names
        of special tokens within a message become those tokens, as with `transformers`: a client that passes on text of
        strangers strips them first. Raises RequestError (`messages`) if there is no template or it refuses.
        """
        if self._template is None:
            message = "the model has no chat template; send `prompt` or `prompt_tokens`"
            raise RequestError("invalid_request", message, param="messages")
        try:
            return self.encode(self._template.render(messages), add_special_tokens=False)
        except RequestError as error:
            raise RequestError(error.code, error.message, param="messages") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`: special tokens and ids outside the vocabulary are left out, broken UTF-8 is U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None


def _decoder_of(tokenizer: Tokenizer, document: bytes) -> Callable[[], TokenStream]:
    """What opens streams of the decoder in tokenizer.json (`document`). ValueError names what is not supported."""
    stages = _stages(msgspec.json.decode(document, type=_TokenizerFile).decoder)
    if [stage["type"] for stage in stages] == ["ByteLevel"]:
        return partial(ByteLevelStream, ByteTable(tokenizer))
    return partial(SentencePieceStream, PieceTable(tokenizer, _sentence_piece_rules(stages)))


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
