"""Every family against transformers: each token's logits within 1e-3 of their range, and the same greedy text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cuda.kernels import reference
from cuda.models.folder import read_spec
from cuda.models.rope import rope_table
from tests.cuda.devices.driver import Driver, config_for
from tests.cuda.models.tiny import VARIANTS, VOCAB_SIZE, Variant, reference_model, tiny_model

NEW_TOKENS = 12


def _prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCAB_SIZE, length)]


def _expected(model: Any, prompt: list[int], count: int) -> tuple[list[int], Any]:
    """Greedy tokens and their logits, computed whole each time, no cache."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        rows.append(model(torch.tensor([tokens])).logits[0, -1].float().numpy())
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], rows


def _assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert np.abs(ours - theirs).max() <= 1e-3 * (theirs.max() - theirs.min())


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_equal_transformers_alone_and_in_a_batch(tmp_path: Path, variant: Variant) -> None:
    folder = tiny_model(tmp_path, variant)
    model = reference_model(folder)
    prompts = {0: _prompt(5), 3: _prompt(40, 1), 1: _prompt(1, 2), 7: _prompt(90, 3)}
    expected = {slot: _expected(model, prompt, NEW_TOKENS) for slot, prompt in prompts.items()}
    driver = Driver(config_for(folder))
    together = driver.generate(prompts, NEW_TOKENS, chunk=32)
    for slot, prompt in prompts.items():
        _assert_same(together[slot], expected[slot])
        _assert_same(driver.generate({slot: prompt}, NEW_TOKENS)[slot], expected[slot])
    driver.close()


@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_any_page_size_gives_the_same_answer(tmp_path: Path, page_size: int) -> None:
    folder = tiny_model(tmp_path, "mistral")
    expected = _expected(reference_model(folder), _prompt(60), NEW_TOKENS)
    driver = Driver(config_for(folder, page_size=page_size, num_pages=128))
    _assert_same(driver.generate({2: _prompt(60)}, NEW_TOKENS, chunk=25)[2], expected)
    driver.close()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_bfloat16_and_quantised_weights_stay_close(tmp_path: Path, quantization: str) -> None:
    folder = tiny_model(tmp_path, "llama")
    prompt = _prompt(30)
    expected = reference_model(folder)(torch.tensor([prompt])).logits[0, -1].numpy()
    driver = Driver(config_for(folder, dtype="bfloat16", quantization=quantization))
    driver.start(0, prompt)
    driver.step([(0, 0, 30, True)])
    correlation = np.corrcoef(driver.device.logits[0], expected)[0, 1]
    assert correlation > {"none": 0.9995, "int8": 0.99, "int4": 0.8}[quantization]
    driver.close()


@pytest.mark.parametrize("variant", ["llama", "llama3_rope", "linear_rope"])
def test_the_rope_table_is_the_one_that_transformers_uses(tmp_path: Path, variant: Variant) -> None:
    folder = tiny_model(tmp_path, variant)
    rotary = reference_model(folder).model.rotary_emb
    cosines, sines = rotary(torch.zeros(1), torch.arange(300)[None])
    half = cosines.shape[-1] // 2
    table = rope_table(read_spec(folder), 300)
    torch.testing.assert_close(table, torch.cat([cosines[0, :, :half], sines[0, :, :half]], dim=1), rtol=0, atol=1e-6)


def test_the_rope_table_turns_what_the_reference_turns(tmp_path: Path) -> None:
    spec = read_spec(tiny_model(tmp_path, "llama"))
    frequencies = spec.rope_theta ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)
    ones = np.concatenate([np.ones(spec.head_dim // 2), np.zeros(spec.head_dim // 2)])[None, None]
    turned = reference.rope(np.repeat(ones, 50, axis=0), np.arange(50), frequencies)[:, 0]
    np.testing.assert_allclose(rope_table(spec, 50).numpy(), turned, atol=1e-5)
