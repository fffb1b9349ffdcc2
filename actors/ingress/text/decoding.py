"""Incremental decoding: the text that each token makes certain. What a tokenizer.json's `decoder` entry says is done.

`ByteLevelStream` is for GPT-2's alphabet (Llama 3, Qwen, SmolLM), `SentencePieceStream` for Llama 2, Mistral, Gemma;
other decoders are refused, never approximated. Owns what is begun and not certain yet, for each stream.
"""

from codecs import utf_8_decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer


class TokenStream(Protocol):
    """Decodes one token at a time. All text returned so far, then `finish()`, is `decode(all tokens)`, exactly."""

    pending: bool
    """Some text of the tokens pushed so far is not certain yet. While False: text returned so far = decode(tokens)."""

    def push(self, token: int) -> str:
        """The text that this token makes certain; often its own, sometimes "" and sometimes that of tokens before."""

    def finish(self) -> str:
        """What was still pending, as it reads if nothing follows (half a character is U+FFFD)."""


@dataclass(frozen=True)
class SentencePieceRules:
    """What the `decoder` entry of tokenizer.json asks."""

    replacements: tuple[tuple[str, str], ...] = ()
    """In each token, in this order: (from, to)."""
    first_replacements: tuple[tuple[str, str], ...] | None = None
    """The same for the first token that is not skipped, if it differs."""
    byte_fallback: bool = False
    """`<0x0A>` is a byte."""
    strip_content: str = " "
    strip_count: int = 0
    """At most this many `strip_content` are taken from the beginning of the whole text."""


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None


def decoder_of(tokenizer: Tokenizer, document: bytes) -> Callable[[], TokenStream]:
    """What opens streams of the decoder in tokenizer.json (`document`). ValueError names what is not supported."""
    stages = _stages(msgspec.json.decode(document, type=_TokenizerFile).decoder)
    if [stage["type"] for stage in stages] == ["ByteLevel"]:
        return partial(ByteLevelStream, _ByteTable(tokenizer))
    return partial(SentencePieceStream, _PieceTable(tokenizer, _sentence_piece_rules(stages)))


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


class ByteLevelStream:
    """For byte-level BPE: a token is a run of bytes, the text is their UTF-8, broken bytes are U+FFFD.

    Owns at most three bytes of a begun character for each stream. Nearly all tokens are whole characters: those cost
    one table look-up. `pending`: a character has begun and not ended.
    """

    __slots__ = ("_begun", "_table", "pending")

    def __init__(self, table: "_ByteTable") -> None:
        self._table = table
        self._begun = b""
        self.pending = False

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        piece = self._table[token]
        if isinstance(piece, str):
            return piece if not self.pending else self._decode(piece.encode())
        return self._decode(piece)

    def finish(self) -> str:
        """U+FFFD if a character has begun, else nothing."""
        text, self._begun, self.pending = self._begun.decode(errors="replace"), b"", False
        return text

    def _decode(self, data: bytes) -> str:
        data = self._begun + data
        text, consumed = utf_8_decode(data, "replace", False)
        self._begun = data[consumed:]
        self.pending = bool(self._begun)
        return text


class _ByteTable(dict[int, str | bytes]):
    """Token → its text if that is whole characters, else its bytes; "" for tokens that `decode` skips. Filled on use.

    Shared by all streams of one tokenizer; filling twice from two threads writes the same value twice.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}

    def __missing__(self, token: int) -> str | bytes:
        name = None if token in self._special else self._tokenizer.id_to_token(token)
        piece = "" if name is None else _whole_text(_bytes_of(name))
        self[token] = piece
        return piece


def _whole_text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _bytes_of(name: str) -> bytes:
    """Added tokens are stored as plain text: one character outside the alphabet and the name means itself."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, name))
    except KeyError:
        return name.encode()


def _gpt2_alphabet() -> dict[str, int]:
    """Character → byte, as GPT-2's `bytes_to_unicode` lays it out: printable Latin-1 is itself, the rest is 256 + n."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _gpt2_alphabet()


class SentencePieceStream:
    """For SentencePiece-like tokenizers: pieces with a mark for spaces, and tokens for single bytes.

    A run of byte tokens reads as one: if the whole run is not UTF-8, each of its bytes is U+FFFD. So the text of a run
    is certain only when another token ends it, and it is held until then. Leading spaces go as the tokenizer says.
    `pending`: a run of byte tokens has not ended.
    """

    __slots__ = ("_is_first", "_run", "_strip_count", "_table", "pending")

    def __init__(self, table: "_PieceTable") -> None:
        self._table = table
        self._run = bytearray()
        self._strip_count = table.rules.strip_count
        self._is_first = table.rules.first_replacements is not None
        self.pending = False

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        piece = self._table[token]
        if piece is None:  # a skipped token does not end a run
            return ""
        if self._is_first:
            piece = self._first_piece(token, piece)
        if isinstance(piece, int):
            self._run.append(piece)
            self.pending = True
            return ""
        text = self._end_run() + piece if self.pending else piece
        return self._strip(text) if self._strip_count else text

    def finish(self) -> str:
        """The text of an unended run."""
        return self._strip(self._end_run())

    def _first_piece(self, token: int, piece: str | int) -> str | int:
        self._is_first = False
        return _replaced(self._table.name_of(token), self._table.rules.first_replacements or ()) if piece else piece

    def _end_run(self) -> str:
        run, self._run, self.pending = self._run, bytearray(), False
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        """Take from the beginning of the whole text; a text that begins otherwise is never stripped again."""
        while self._strip_count and text.startswith(self._table.rules.strip_content):
            text = text[1:]
            self._strip_count -= 1
        if text:
            self._strip_count = 0
        return text


class _PieceTable(dict[int, str | int | None]):
    """Token → its text, or its byte, or None if `decode` skips it. Shared by all streams of one tokenizer.

    Filled on use; twice writes the same value.
    """

    def __init__(self, tokenizer: Tokenizer, rules: SentencePieceRules) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.rules = rules
        self._special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}

    def name_of(self, token: int) -> str:
        """The token as the vocabulary spells it."""
        return str(self._tokenizer.id_to_token(token))

    def __missing__(self, token: int) -> str | int | None:
        name = None if token in self._special else self._tokenizer.id_to_token(token)
        self[token] = piece = None if name is None else self._piece_of(_replaced(name, self.rules.replacements))
        return piece

    def _piece_of(self, name: str) -> str | int:
        byte = _byte_of(name) if self.rules.byte_fallback else None
        return name if byte is None else byte


def _byte_of(name: str) -> int | None:
    if len(name.encode()) == len("<0x00>") and name.startswith("<0x") and name.endswith(">"):
        try:
            return int(name[3:5], 16)
        except ValueError:
            return None
    return None


def _replaced(name: str, replacements: tuple[tuple[str, str], ...]) -> str:
    for old, new in replacements:
        name = name.replace(old, new)
    return name
