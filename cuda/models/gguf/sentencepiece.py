"""SentencePiece vocabularies of Llama 2 and Mistral (`tokenizer.ggml.model` "llama") as ranked merges.

SentencePiece merges the pair whose result has the highest score. The same is a byte-pair model whose merges are all
ways of making a token out of two, ranked by score; bytes without a token fall back to `<0x..>` tokens.
"""

import math
from collections.abc import Mapping
from typing import Final

from cuda.models.fields import Fields
from cuda.models.spec import UnsupportedModel

_SPACE: Final = "\u2581"
_NORMAL: Final = 1


def sentencepiece_parts(fields: Fields, vocab: Mapping[str, int]) -> dict[str, object]:
    """Return tokenizer.json's normalizer, pre_tokenizer, decoder and model."""
    prefix = fields.flag("add_space_prefix", default=True)
    unknown = fields.index("unknown_token_id", 0)
    names = list(vocab)
    if unknown >= len(names):
        raise fields.refused("unknown_token_id", f"the vocabulary has {len(names)} tokens")
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Prepend", "prepend": _SPACE}] if prefix else []),
                {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": names[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(_scores(fields, vocab), vocab),
        },
    }


def _scores(fields: Fields, vocab: Mapping[str, int]) -> dict[str, float]:
    """Scores of the normal tokens of two letters or more: what merges can make.

    Among equal scores SentencePiece takes the leftmost pair, which no rank can say. Only runs of spaces share a score
    in the vocabularies of this kind; there, leftmost first means longest first.
    """
    scores, types = fields.get("scores"), fields.get("token_type")
    if not isinstance(scores, list) or not isinstance(types, list) or not len(scores) == len(types) == len(vocab):
        raise UnsupportedModel("GGUF: tokenizer.ggml.scores or token_type does not go with the tokens")
    if not all(isinstance(score, float) and math.isfinite(score) for score in scores):
        raise UnsupportedModel("GGUF: tokenizer.ggml.scores has a score that is no finite number")
    made = {token: scores[index] for token, index in vocab.items() if types[index] == _NORMAL and len(token) > 1}
    ranked = [score for token, score in made.items() if token.strip(_SPACE)]
    if len(set(ranked)) != len(ranked):
        raise UnsupportedModel("GGUF: tokenizer.ggml.scores has equal scores: the order of merges is not defined")
    return made


def _merges(scores: Mapping[str, float], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for token in sorted(scores, key=lambda token: (-scores[token], -len(token))):
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        merges += [(left, right) for left, right in cuts if left in vocab and right in vocab]
    return merges
