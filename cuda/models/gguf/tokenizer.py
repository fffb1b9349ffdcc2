"""A GGUF file's vocabulary as tokenizer.json and tokenizer_config.json.

Honours what the file declares (model, pre-tokenizer, merges or scores, token types, special tokens, chat template)
or refuses it by name. Pure: metadata in, JSON values out.

Vocabularies of SentencePiece (`tokenizer.ggml.model` "llama": Llama 2, Mistral) become ranked merges. SentencePiece
merges the pair whose result has the highest score; the same is a byte-pair model whose merges are all ways of making a
token out of two, ranked by score. Bytes without a token fall back to `<0x..>` tokens. Read
`cuda.models.gguf.pretokenizer` for the cutting rules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from cuda.models.fields import Fields
from cuda.models.gguf.pretokenizer import PRE_TOKENIZERS, PreTokenizer
from cuda.models.spec import UnsupportedModel

_WHERE: Final = "GGUF: tokenizer.ggml"
_PREFIX: Final = "tokenizer.ggml."
_SPACE: Final = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
# Rules that some tokenizers have and none of the supported ones.
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "model": ("gpt2", "llama"),
    "add_eos_token": (False,),
    "add_sep_token": (False,),
    "remove_extra_whitespaces": (False,),
    "precompiled_charsmap": ([],),
}


def hf_tokenizer(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return tokenizer.json's content; UnsupportedModel names what cannot be honoured."""
    fields = _fields(metadata)
    tokens = _strings(fields, "tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise UnsupportedModel(f"{_WHERE}.tokens has {twice!r} twice")
    if fields.get("model") == "llama":
        parts = _sentencepiece_parts(fields, vocab)
    else:
        parts = _byte_level_parts(_pre_tokenizer(fields), _merges(fields, vocab), vocab)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(fields, tokens),
        **parts,
        "post_processor": _post_processor(fields, tokens),
    }


def hf_tokenizer_config(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return tokenizer_config.json's content."""
    fields = _fields(metadata)
    tokens = _strings(fields, "tokens")
    specials = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    template = Fields(metadata, "GGUF").text("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(fields),
        "add_eos_token": False,
        **{
            name: _token(fields, tokens, f"{key}_token_id")
            for name, key in specials.items()
            if f"{key}_token_id" in fields
        },
        **({} if template is None else {"chat_template": template}),
    }


def _fields(metadata: Mapping[str, object]) -> Fields:
    own = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    fields = Fields(own, _WHERE)
    if "model" not in fields:
        raise fields.refused("model", "supported are gpt2 and llama")
    for name, allowed in _ONLY.items():
        fields.only(name, allowed)
    return fields


def _pre_tokenizer(fields: Fields) -> PreTokenizer:
    name = fields.text("pre") or ""
    if name not in PRE_TOKENIZERS:
        raise fields.refused("pre", f"supported are {', '.join(PRE_TOKENIZERS)}")
    return PRE_TOKENIZERS[name]


def _byte_level_parts(
    pre: PreTokenizer, merges: Sequence[tuple[str, str]], vocab: Mapping[str, int]
) -> dict[str, object]:
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _merges(fields: Fields, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Both halves of each merge; a token may itself begin with a space, so the search starts at the second letter."""
    merges = []
    for merge in _strings(fields, "merges"):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise UnsupportedModel(f"{_WHERE}.merges has {merge!r}, which is not made of two tokens into a third")
        merges.append((left, right))
    return merges


def _sentencepiece_parts(fields: Fields, vocab: Mapping[str, int]) -> dict[str, object]:
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
            "merges": _ranked_merges(_scores(fields, vocab), vocab),
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


def _ranked_merges(scores: Mapping[str, float], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for token in sorted(scores, key=lambda token: (-scores[token], -len(token))):
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        merges += [(left, right) for left, right in cuts if left in vocab and right in vocab]
    return merges


def _added_tokens(fields: Fields, tokens: Sequence[str]) -> list[dict[str, object]]:
    """Control and unknown tokens are special (left out of decoded text); user-defined ones are only kept whole."""
    types = _types(fields, len(tokens))
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) and token
    ]


def _types(fields: Fields, num_tokens: int) -> list[object]:
    types = fields.get("token_type")
    if not isinstance(types, list) or len(types) != num_tokens:
        raise UnsupportedModel(f"{_WHERE}.token_type is missing or does not go with the {num_tokens} tokens")
    return types


def _post_processor(fields: Fields, tokens: Sequence[str]) -> dict[str, object] | None:
    """Put the begin token before a text, where the file asks for it."""
    if not _adds_bos(fields):
        return None
    bos = _token(fields, tokens, "bos_token_id")
    begin = {"SpecialToken": {"id": bos, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": index}} for index, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, begin, second],
        "special_tokens": {bos: {"id": bos, "ids": [fields.index("bos_token_id")], "tokens": [bos]}},
    }


def _adds_bos(fields: Fields) -> bool:
    default = fields.get("model") == "llama" or _pre_tokenizer(fields).add_bos
    return fields.flag("add_bos_token", default=default)


def _token(fields: Fields, tokens: Sequence[str], name: str) -> str:
    index = fields.index(name)
    if index >= len(tokens):
        raise fields.refused(name, f"the vocabulary has {len(tokens)} tokens")
    return tokens[index]


def _strings(fields: Fields, name: str) -> list[str]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UnsupportedModel(f"{_WHERE}.{name} is missing or no list of strings")
    return values
