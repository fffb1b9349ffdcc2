"""Incremental decoding for SentencePiece-like tokenizers: pieces with a mark for spaces, and tokens for single bytes.

A run of byte tokens reads as one: if the whole run is not UTF-8, each of its bytes is U+FFFD. So the text of a run is
certain only when another token ends it, and it is held until then. Leading spaces go as the tokenizer says.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer


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


class SentencePieceStream:
    """See `model.TokenStream`. `pending`: a run of byte tokens has not ended."""

    __slots__ = ("_is_first", "_run", "_strip_count", "_table", "pending")

    def __init__(self, table: "PieceTable") -> None:
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


class PieceTable(dict[int, str | int | None]):
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
