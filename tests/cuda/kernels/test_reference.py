"""The definitions themselves, against published vectors, torch, and hand-made cases."""

import numpy as np
import pytest
import torch

from cuda.kernels import reference
from cuda.kernels.reference import Draw


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    key: tuple[int, ...], counter: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert reference.philox4x32(key, counter) == expected


def test_uniform_takes_word_token_mod_4_of_block_token_div_4() -> None:
    words = reference.philox4x32((5, 1), (3, 77, 0, 0))
    assert reference.uniform(5 + (1 << 32), 77, 14) == (words[2] + 0.5) / 2**32


def test_norm_and_gates_agree_with_torch() -> None:
    random = np.random.default_rng(1)
    x, weight = random.normal(size=(5, 24)), random.normal(size=24)
    normed = torch.nn.functional.rms_norm(torch.tensor(x), (24,), torch.tensor(weight), eps=1e-5)
    np.testing.assert_allclose(reference.rms_norm(x, weight, 1e-5), normed.numpy(), rtol=1e-12)
    gate, up = torch.tensor(x).chunk(2, dim=-1)
    np.testing.assert_allclose(reference.silu_mul(x), (torch.nn.functional.silu(gate) * up).numpy(), rtol=1e-12)
    gelu = torch.nn.functional.gelu(gate, approximate="tanh") * up
    np.testing.assert_allclose(reference.gelu_mul(x), gelu.numpy(), rtol=1e-12)


def test_paged_attention_agrees_with_torch_over_scattered_pages() -> None:
    random = np.random.default_rng(2)
    pool = random.normal(size=(7, 2, 2, 4, 8))
    queries = random.normal(size=(9, 4, 8))
    pages = [5, 0, 3]
    keys, values = (pool[pages, kind].transpose(1, 0, 2, 3).reshape(2, 12, 8)[:, :9] for kind in (0, 1))
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(queries).transpose(0, 1), torch.tensor(keys), torch.tensor(values), is_causal=True, enable_gqa=True
    )
    found = reference.paged_attention(queries, pool, pages, 0, None)
    np.testing.assert_allclose(found, expected.transpose(0, 1).numpy(), rtol=1e-10)


def test_ties_go_to_the_lowest_id_in_every_filter() -> None:
    logits = np.array([0.0, 1.0, 1.0, 1.0, 1.0])
    assert reference.kept_tokens(logits, Draw(top_k=2)).tolist() == [1, 2]
    assert reference.kept_tokens(logits[1:], Draw(top_p=0.5)).tolist() == [0, 1]
    assert reference.sample(logits, [], [], Draw(temperature=0)) == 1


def test_filters_apply_one_after_another() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    assert reference.kept_tokens(logits, Draw(top_p=0.7)).tolist() == [0, 1]
    assert reference.kept_tokens(logits, Draw(top_k=2, top_p=0.57)).tolist() == [0]
    assert reference.kept_tokens(logits, Draw(min_p=0.6)).tolist() == [0, 1]


def test_penalties_count_what_the_api_says() -> None:
    draw = Draw(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias={3: 7.0}, banned=(4,))
    found = reference.adjust(np.array([4.0, -4.0, 1.0, 1.0, 9.0]), [0], [1, 1], draw)
    assert found.tolist() == [2.0, -8.0 - 1.0 - 0.25, 1.0, 8.0, -np.inf]


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1]))
    drawn = [reference.sample(logits, [], [], Draw(seed=seed)) for seed in range(4000)]
    shares = np.bincount(drawn, minlength=4) / 4000
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.15, 0.1], atol=0.025)
