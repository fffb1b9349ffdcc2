"""Byte-pair tokens the slow and plain way: the definition that written tokenizers are checked against.

Shares nothing with the product: words are cut by the `regex` package, merges are searched for one at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import regex  # type: ignore[import-untyped]  # it has no types

GPT2_WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def gpt2_bytes() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def isolated(pattern: str) -> Callable[[str], list[str]]:
    """Cut out each match; what lies between matches is a word too."""
    compiled = regex.compile(f"({pattern})")

    def cut(text: str) -> list[str]:
        words, end = [], 0
        for match in compiled.finditer(text):
            words += [text[end : match.start()], match.group(0)]
            end = match.end()
        return [word for word in (*words, text[end:]) if word]

    return cut


def smollm_words(text: str) -> list[str]:
    """Every digit alone, then GPT-2's words."""
    return [word for piece in isolated(r"\p{N}")(text) for word in GPT2_WORDS.findall(piece)]


@dataclass
class BytePairs:
    """A vocabulary with ranked merges, over words cut by `words`."""

    tokens: Sequence[str]
    merges: Sequence[str]
    words: Callable[[str], list[str]]
    whole_words: bool = False
    """A word that is a token is that token."""
    ids: Mapping[str, int] = field(init=False)
    ranks: Mapping[tuple[str, str], int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.ranks = {
            (left, right): rank for rank, (left, _, right) in enumerate(m.partition(" ") for m in self.merges)
        }

    def encode(self, text: str) -> list[int]:
        """Tokens of a text without special tokens."""
        letters = gpt2_bytes()
        words = ["".join(letters[byte] for byte in word.encode()) for word in self.words(text)]
        return [self.ids[part] for word in words for part in self._merged(word)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens' bytes."""
        values = {letter: byte for byte, letter in gpt2_bytes().items()}
        return bytes(values[letter] for index in ids for letter in self.tokens[index]).decode("utf-8", "replace")

    def _merged(self, word: str) -> list[str]:
        if self.whole_words and word in self.ids:
            return [word]
        parts = list(word)
        while len(parts) > 1:
            pairs = [(self.ranks.get(pair, len(self.ranks)), at) for at, pair in enumerate(pairwise(parts))]
            rank, at = min(pairs)
            if rank == len(self.ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts
