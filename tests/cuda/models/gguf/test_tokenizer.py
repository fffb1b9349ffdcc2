"""Written tokenizers against a plain Python definition, for the demo and for every pre-tokenizer's cutting rule."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import transformers

from cuda.models.gguf.pretokenizer import PRE_TOKENIZERS
from cuda.models.gguf.tokenizer import hf_tokenizer
from cuda.models.spec import UnsupportedModel
from tests.cuda.models.byte_pairs import GPT2_WORDS, BytePairs, gpt2_bytes, isolated, smollm_words

CASES = json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text(encoding="utf-8"))
PIECES = [
    *("Hello", "world", " the", " quick", "don't", "WE'LL", "they've ", "I'M", "x", "a_b_c", "camelCase", "ALLCAPS"),
    *("  ", " ", "\n", "\n\n", "\t", "\r\n", " \n  ", "\u00a0", "\u200b", "\u2028", "\u3000", "\u0085", "\x00", "\x7f"),
    *("2024", " 365", "1,234.56", "½", "²", "٣٤", "१२", "Ⅷ", "3.14e-10", "0x1F", "100%", "12:30", "v1.2.3", "€5"),
    *("def f(x):\n    return x + 1\n", "for i in range(10):", '{"key": [1, 2]}', "a=b;", "//comment", "#include <a.h>"),
    *("| 1 | 2 |\n", "- item\n", "1. first\n", "```python\n", "**bold**", "https://example.org/?q=1&r=2", "</div>"),
    *("日本語", "2024年12月", "你好世界", "안녕하세요", "привет", "Ελλάδα", "שלום", "مرحبا", "ไทย", "हिन्दी"),
    *("😀", "👩\u200d👩\u200d👧", "🇩🇪", "é", "e\u0301", "\u0301ABC", "ﬁ", "ǅ", "ß", "Grüße", "naïve", "�"),
    *("…", "—", "“quoted”", "$", "^", "~", "`", "\\", "...", "!?!", "(", ")"),
]


def texts(number: int, seed: int = 3) -> list[str]:
    """Texts of every kind, the same for the same seed."""
    draw = random.Random(seed)
    mixed = ["".join(draw.choices(PIECES, k=draw.randrange(1, 14))) for _ in range(number)]
    return [*PIECES, *(case["text"] for case in CASES), *mixed, "", " " * 40, "\n" * 17, "1" * 33, "a" * 100]


@pytest.fixture(scope="module")
def demo(demo_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(demo_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def definition(demo_reader: gguf.GGUFReader) -> BytePairs:
    fields = demo_reader.fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    return BytePairs(tokens, merges, smollm_words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"]))
def test_the_demos_known_tokens_hold(case: dict[str, Any], demo: tokenizers.Tokenizer) -> None:
    assert demo.encode(case["text"]).ids == case["ids"]
    assert demo.decode(case["ids"]) == case["text"]


def test_the_demos_tokens_are_those_of_the_definition(demo: tokenizers.Tokenizer, definition: BytePairs) -> None:
    checked = texts(300)
    assert len(checked) > 400
    for text in checked:
        ids = definition.encode(text)
        assert demo.encode(text).ids == ids, repr(text)
        assert demo.decode(ids) == definition.decode(ids) == text


def test_any_tokens_decode_like_their_bytes(demo: tokenizers.Tokenizer, definition: BytePairs) -> None:
    draw = random.Random(4)
    for _ in range(200):
        ids = draw.choices(range(17, 49152), k=draw.randrange(1, 12))
        assert demo.decode(ids) == definition.decode(ids)


def test_the_demos_special_tokens_are_found_whole_and_left_out_of_text(demo: tokenizers.Tokenizer) -> None:
    assert demo.encode("<|im_start|>user\nHi<|im_end|>").ids[0] == 1
    assert demo.encode("<|im_start|>user\nHi<|im_end|>").ids[-1] == 2
    assert demo.encode("a<|endoftext|>b").ids == [81, 0, 82]
    assert demo.decode([1, 81, 2]) == "a"
    assert demo.decode([1, 81, 2], skip_special_tokens=False) == "<|im_start|>a<|im_end|>"
    added = demo.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    assert all(token.special and not (token.lstrip or token.rstrip or token.normalized) for token in added.values())


def test_transformers_reads_the_demos_tokenizer_and_template(demo_folder: Path) -> None:
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(demo_folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.unk_token, tokenizer.pad_token) == ("<|endoftext|>", "<|im_end|>")
    assert all(tokenizer(case["text"])["input_ids"] == case["ids"] for case in CASES)
    messages = [{"role": "user", "content": "What is 12+30?"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 12+30?<|im_end|>\n<|im_start|>assistant\n"
    )


# The published rule of each tokenizer, as one function from text to words.
CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = isolated(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}")
QWEN2 = isolated(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}")
TEKKEN = isolated(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def deepseek_coder(text: str) -> list[str]:
    words = [text]
    for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"):
        words = [part for word in words for part in isolated(pattern)(word)]
    return words


def gpt2(text: str) -> list[str]:
    return list(GPT2_WORDS.findall(text))


RULES: dict[str, Callable[[str], list[str]]] = {
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "falcon3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "megrez": QWEN2,
    "stablelm2": QWEN2,
    "tekken": TEKKEN,
    "deepseek-coder": deepseek_coder,
    "smollm": smollm_words,
    "starcoder": smollm_words,
    "refact": smollm_words,
    "codeshell": smollm_words,
    "command-r": smollm_words,
    "gpt-2": gpt2,
    "phi-2": gpt2,
    "olmo": gpt2,
    "mpt": gpt2,
    "gigachat": gpt2,
    "mellum": gpt2,
}


FIRST_OF_RULE = {rule: name for name, rule in reversed(RULES.items())}


def test_every_known_pre_tokenizer_has_a_rule_here() -> None:
    assert RULES.keys() == PRE_TOKENIZERS.keys()


def test_names_that_share_a_rule_are_cut_alike() -> None:
    for name, rule in RULES.items():
        assert PRE_TOKENIZERS[name].steps == PRE_TOKENIZERS[FIRST_OF_RULE[rule]].steps


@pytest.mark.parametrize("pre", FIRST_OF_RULE.values())
def test_each_pre_tokenizer_cuts_and_merges_by_its_published_rule(pre: str, definition: BytePairs) -> None:
    whole_words = PRE_TOKENIZERS[pre].ignore_merges
    reference = BytePairs(definition.tokens, definition.merges, RULES[pre], whole_words)
    written = built(metadata_of(definition, pre))
    for text in texts(60, seed=8):
        normal = written.normalizer.normalize_str(text) if written.normalizer else text
        assert written.encode(text, add_special_tokens=False).ids == reference.encode(normal), repr(text)


def test_only_qwen2_composes_letters(definition: BytePairs) -> None:
    assert {pre for pre, rules in PRE_TOKENIZERS.items() if rules.nfc} == {"qwen2"}
    written = built(metadata_of(definition, "qwen2"))
    assert written.encode("e\u0301").ids == written.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("pre", "declared", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
        ("smollm", None, False),
        ("smollm", True, True),
        ("qwen2", None, False),
    ],
)
def test_a_begin_token_is_added_as_declared_or_as_the_pre_tokenizer_has_it(
    pre: str, definition: BytePairs, *, declared: bool | None, begins: bool
) -> None:
    metadata = metadata_of(definition, pre)
    if declared is not None:
        metadata["tokenizer.ggml.add_bos_token"] = declared
    written = built(metadata)
    assert written.encode("a").ids == ([1, 81] if begins else [81])
    assert written.encode("a", add_special_tokens=False).ids == [81]


def test_user_defined_tokens_are_kept_whole_and_stay_in_text(definition: BytePairs) -> None:
    metadata = metadata_of(definition, "smollm")
    types = [1] * len(definition.tokens)
    types[3], types[4] = 4, 5
    written = built({**metadata, "tokenizer.ggml.token_type": types})
    assert written.encode("a<repo_name>b").ids == [81, 3, 82]
    assert written.decode([81, 3, 82]) == "a<repo_name>b"
    assert 4 not in written.encode("a<reponame>b").ids


def test_a_token_with_a_space_in_it_can_be_merged() -> None:
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [" ", "a", " a"],
        "tokenizer.ggml.token_type": [1, 1, 1],
        "tokenizer.ggml.merges": ["  a"],
    }
    assert model_of(metadata)["merges"] == [(" ", "a")]


# SentencePiece: pieces, and the score by which a pair is merged first.
SPM_PIECES = {"▁h": -1.0, "▁w": -3.0, "ll": -2.0, "he": -4.0, "▁he": -5.0, "llo": -6.0, "or": -7.0, "▁wor": -8.0}
SPM_PIECES |= {"▁" * length: -1e9 for length in (2, 3, 4, 8)}
SPM_LETTERS = ["▁", *"helowrd"]


def test_sentencepiece_vocabularies_merge_the_best_score_first() -> None:
    metadata = spm_metadata()
    written = built(metadata)
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    draw = random.Random(9)
    for _ in range(200):
        text = "".join(draw.choices([*"helowrd", " ", "é", "  ", " " * 7], k=draw.randrange(1, 15)))
        ids = written.encode(text, add_special_tokens=False).ids
        assert [tokens[index] for index in ids] == spm_definition("▁" + text.replace(" ", "▁")), repr(text)
        assert written.decode(ids) == text


def test_sentencepiece_texts_begin_with_the_begin_token_and_a_space() -> None:
    written = built(spm_metadata())
    assert written.encode("he").tokens == ["<s>", "▁he"]
    without = built({**spm_metadata(), "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("he").tokens == ["he"]
    assert without.decode(without.encode(" he").ids) == " he"


def test_sentencepiece_scores_must_be_an_order() -> None:
    metadata = spm_metadata()
    scores: Any = metadata["tokenizer.ggml.scores"]
    with pytest.raises(UnsupportedModel, match="equal scores"):
        hf_tokenizer({**metadata, "tokenizer.ggml.scores": [0.0] * len(scores)})
    with pytest.raises(UnsupportedModel, match="scores or token_type does not go with the tokens"):
        hf_tokenizer({**metadata, "tokenizer.ggml.scores": None})


def spm_metadata() -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_PIECES, *SPM_LETTERS]
    scores = [0.0] * 259 + list(SPM_PIECES.values()) + [-100.0 - index for index in range(len(SPM_LETTERS))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def spm_definition(text: str) -> list[str]:
    """Merge the neighbours whose join has the best score, leftmost first, until none is a piece."""
    parts = list(text)
    while True:
        joins = [(-SPM_PIECES[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in SPM_PIECES]
        if not joins:
            break
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    known = {*SPM_PIECES, *SPM_LETTERS}
    return [
        token
        for part in parts
        for token in ([part] if part in known else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]


def metadata_of(definition: BytePairs, pre: str) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": definition.tokens,
        "tokenizer.ggml.merges": definition.merges,
        "tokenizer.ggml.token_type": [3] * 17 + [1] * (len(definition.tokens) - 17),
        "tokenizer.ggml.bos_token_id": 1,
    }


def built(metadata: dict[str, object]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(hf_tokenizer(metadata)))


def model_of(metadata: dict[str, object]) -> Any:
    return hf_tokenizer(metadata)["model"]


def test_bytes_that_the_vocabulary_lacks_are_left_out(demo: tokenizers.Tokenizer, definition: BytePairs) -> None:
    lacking = {chr(byte) for byte, letter in gpt2_bytes().items() if byte < 128 and letter not in definition.ids}
    assert lacking == {"\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"}
    assert all(demo.encode(f"a{letter}b").ids == [81, 82] for letter in lacking)
