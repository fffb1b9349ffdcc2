"""Incremental decoding for byte-level BPE: a token is a run of bytes, the text is their UTF-8, broken bytes are U+FFFD.

Owns at most three bytes of a begun character for each stream. Nearly all tokens are whole characters: those cost one
table look-up.
"""

from codecs import utf_8_decode

from tokenizers import Tokenizer


class ByteLevelStream:
    """See `model.TokenStream`. `pending`: a character has begun and not ended."""

    __slots__ = ("_begun", "_table", "pending")

    def __init__(self, table: "ByteTable") -> None:
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


class ByteTable(dict[int, str | bytes]):
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
