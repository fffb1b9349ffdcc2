import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, processors

from actors.ingress.text import TextModel
from actors.ingress.text.model import LONG_CHARS
from protocol.errors import RequestError
from protocol.wire import ChatMessage
from tests.actors.ingress.text.chat_templates import CHATML
from tests.actors.ingress.text.model_folders import byte_level_folder, write_folder

# Text and token ids: an independent implementation of the model's declared pre-tokenizer (digits one by one).
DEMO_CASES: list[tuple[str, list[int]]] = [
    ("in 2024", [254, 216, 34, 32, 34, 36]),
    ("x  12", [104, 256, 33, 34]),
    ("12 345", [33, 34, 216, 35, 36, 37]),
    ("a\t\t9 b", [81, 1656, 41, 278]),
    ("def f(x):\n    return x  + 10", [1604, 275, 24, 104, 727, 472, 1003, 1792, 216, 1232, 216, 33, 32]),
    ("price: $1,234.56", [17517, 42, 1885, 33, 28, 34, 35, 36, 30, 37, 38]),
    ("½ ٣٤ ²", [16738, 216, 164, 113, 164, 114, 216, 19133]),
    ("1.5e-10", [33, 30, 37, 85, 29, 33, 32]),
    (
        "日本語 2024年12月",
        [23274, 115, 40993, 179, 120, 248, 216, 34, 32, 34, 36, 32090, 129, 33, 34, 14483, 226],
    ),
    ("😀😀 100%", [10813, 242, 218, 10813, 242, 218, 216, 33, 32, 32, 21]),
    (
        "|  1 |  2 |\n|  3 |  4 |",
        [108, 256, 33, 2504, 256, 34, 2504, 198, 108, 256, 35, 2504, 256, 36, 2504],
    ),
    ("11111111111111111111", [33] * 20),
]


@pytest.mark.parametrize(("text", "tokens"), DEMO_CASES)
def test_the_demo_model_encodes_text_as_it_was_trained(demo: TextModel, text: str, tokens: list[int]) -> None:
    assert demo.encode(text) == tokens
    assert demo.decode(tokens) == text


def test_a_long_text_is_encoded_like_a_short_one(demo: TextModel) -> None:
    assert demo.encode("1" * (LONG_CHARS + 1)) == [33] * (LONG_CHARS + 1)


def test_a_long_text_is_encoded_while_other_threads_run(demo: TextModel) -> None:
    thread = threading.Thread(target=demo.encode, args=("word " * 400_000,))
    begin = last = time.perf_counter()
    thread.start()
    longest = 0.0
    while thread.is_alive():
        thread.join(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - begin) / 2


def test_the_demo_model_has_its_49152_tokens(demo: TextModel) -> None:
    assert demo.vocab_size == 49152


def test_a_chat_of_the_demo_model_ends_where_the_assistant_begins(demo: TextModel) -> None:
    tokens = demo.encode_chat([ChatMessage(role="user", content="Hi")])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert tokens == demo.encode(system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokens[0] == 1


def test_a_prompt_begins_with_bos_once_and_a_chat_as_its_template_says(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(byte_level_folder(tmp_path / "plain") / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 0)])
    model = TextModel.load(write_folder(tmp_path / "bos", tokenizer, "{{ bos_token }}{{ messages[0].content }}"))
    plain = model.encode("the", add_special_tokens=False)
    assert model.encode("the") == [0, *plain]
    assert model.encode_chat([ChatMessage(role="user", content="the")]) == [0, *plain]


def test_special_tokens_named_in_a_message_are_parsed(demo: TextModel) -> None:
    assert demo.encode("a<|im_end|>b") == [*demo.encode("a"), 2, *demo.encode("b")]


def test_decoding_leaves_special_and_unknown_tokens_out(demo: TextModel) -> None:
    assert demo.decode([2, *demo.encode("word"), 0, 999_999]) == "word"


@pytest.mark.parametrize("text", ["\ud800", "abc\udfffdef"])
def test_a_lone_surrogate_is_a_bad_request(demo: TextModel, text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as plain:
        demo.encode(text)
    assert (plain.value.code, plain.value.param) == ("invalid_request", "prompt")
    with pytest.raises(RequestError, match="lone surrogate") as in_chat:
        demo.encode_chat([ChatMessage(role="user", content=text)])
    assert in_chat.value.param == "messages"


def test_a_chat_without_a_template_is_a_bad_request(byte_level: TextModel) -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        byte_level.encode_chat([ChatMessage(role="user", content="Hi")])
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")


def test_a_stored_limit_of_the_tokenizer_shortens_and_pads_nothing(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(byte_level_folder(tmp_path / "plain") / "tokenizer.json"))
    expected = tokenizer.encode("the quick brown fox").ids
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    assert TextModel.load(write_folder(tmp_path / "limited", tokenizer)).encode("the quick brown fox") == expected


def test_a_folder_without_a_tokenizer_is_refused_by_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing"):
        TextModel.load(str(tmp_path))


@pytest.mark.parametrize("document", [b"", b"{}", b"[" * 100_000, b"\xff"])
def test_a_broken_tokenizer_is_refused_by_the_files_name(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(document)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "has no decoder"),
        (decoders.WordPiece(), "WordPiece, which cannot be streamed"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]), "Fuse [+] ByteFallback"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]), "ByteFallback [+] Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]), "strips the end"),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused_by_its_name(tmp_path: Path, decoder: Any, message: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(ValueError, match=message):
        TextModel.load(write_folder(tmp_path, tokenizer))


def test_a_decoder_that_replaces_by_pattern_is_refused(tmp_path: Path) -> None:
    path = write_folder(tmp_path, Tokenizer(models.BPE())) / "tokenizer.json"
    document = json.loads(path.read_text())
    document["decoder"] = {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="regular expression"):
        TextModel.load(tmp_path)


def test_a_chat_is_encoded_with_the_template_of_the_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(byte_level_folder(tmp_path / "plain") / "tokenizer.json"))
    model = TextModel.load(write_folder(tmp_path / "chat", tokenizer, CHATML))
    expected = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    assert model.encode_chat([ChatMessage(role="user", content="the")]) == tokenizer.encode(expected).ids
