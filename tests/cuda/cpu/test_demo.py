"""The demo model, whole: 20 prompts of varied length against transformers, alone in chunks and all in one batch."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from cuda.models.folder import prepare_model
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.models.tiny import reference_model

NEW_TOKENS = 6
TEXT = """The scheduler decides which rows share a step. In 1969 people walked on the Moon; in 2024 they planned to go
back. Write a function that adds two numbers: def add(a, b): return a + b. Water boils at 100 degrees. Once upon a time
there was a small engine that served many streams at once, and nobody had to wait for the longest of them. """


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_model("demo")


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode(TEXT, add_special_tokens=False).ids
    return [[*itertools.islice(itertools.cycle(tokens), 3 * i, 3 * i + length)] for i, length in enumerate(_LENGTHS)]


_LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 20, 31, 32, 33, 40, 47, 48, 63, 64, 65, 90, 130]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[tuple[list[int], Any]]:
    """Greedy tokens and their logits, by transformers with its own cache."""
    model = reference_model(folder)
    found = []
    for prompt in prompts:
        result = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
            output_logits=True, return_dict_in_generate=True, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        logits = [row[0].numpy() for row in result.logits]
        found.append((result.sequences[0, len(prompt) :].tolist(), logits))
    return found


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    driver = Driver(config_for(folder, max_running=20, num_pages=300))
    yield driver
    driver.close()


def _assert_same(found: Any, expected: tuple[list[int], Any]) -> None:
    assert found[0] == expected[0]
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert np.abs(ours - theirs).max() <= 1e-3 * np.ptp(theirs)


def test_text_and_logits_equal_transformers_in_one_full_batch(
    driver: Driver, prompts: list[list[int]], expected: list[tuple[list[int], Any]]
) -> None:
    found = driver.generate(dict(enumerate(prompts)), NEW_TOKENS, chunk=48)
    for slot, right in enumerate(expected):
        _assert_same(found[slot], right)


@pytest.mark.parametrize("index", [0, 6, 12, 19])
def test_text_and_logits_equal_transformers_alone(
    driver: Driver, prompts: list[list[int]], expected: list[tuple[list[int], Any]], index: int
) -> None:
    _assert_same(driver.generate({3: prompts[index]}, NEW_TOKENS)[3], expected[index])
    _assert_same(driver.generate({3: prompts[index]}, NEW_TOKENS, chunk=32)[3], expected[index])


def test_the_files_own_four_bits_are_found_again(driver: Driver) -> None:
    assert driver.pool.weights_bytes < 100e6
