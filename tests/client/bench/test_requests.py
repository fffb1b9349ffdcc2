import json
import math
from pathlib import Path

import pytest

from client.bench.requests import Lengths, arrivals, make_requests, read_requests
from client.errors import BadRequestError


def test_random_prompts_have_exactly_the_length_that_was_asked() -> None:
    requests = make_requests("random", Lengths(input_len=7, output_len=3), num_requests=5, vocab_size=2000, seed=0)
    assert {len(request.prompt_tokens) for request in requests} == {7}
    assert {request.max_tokens for request in requests} == {3}
    assert all(1000 <= token < 2000 for request in requests for token in request.prompt_tokens)
    assert len({tuple(request.prompt_tokens) for request in requests}) == 5
    assert all(len(request.text().split()) == 7 for request in requests)


def test_the_range_ratio_spreads_lengths_on_both_sides_of_the_mean() -> None:
    lengths = Lengths(input_len=100, output_len=10, range_ratio=0.5)
    requests = make_requests("random", lengths, num_requests=2000, vocab_size=100, seed=1)
    seen = [len(request.prompt_tokens) for request in requests]
    assert (min(seen), max(seen)) == (50, 150)
    assert sum(seen) / len(seen) == pytest.approx(100, rel=0.03)
    assert {request.max_tokens for request in requests} == set(range(5, 16))


def test_the_same_seed_asks_the_same_and_another_seed_asks_something_else() -> None:
    lengths = Lengths(input_len=8, output_len=8)
    first, again, other = (
        make_requests("random", lengths, num_requests=4, vocab_size=500, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_sharegpt_like_lengths_have_a_long_tail_around_their_mean() -> None:
    lengths = Lengths(input_len=160, output_len=340)
    requests = make_requests("sharegpt-like", lengths, num_requests=4000, vocab_size=100, seed=0)
    outputs = sorted(request.max_tokens for request in requests)
    assert outputs[0] >= 1
    assert outputs[-1] <= 8 * 340
    assert sum(outputs) / len(outputs) == pytest.approx(340, rel=0.08)
    assert outputs[len(outputs) // 2] < 240  # a lognormal's median is well below its mean


def test_a_poisson_rate_has_the_mean_gap_it_names_and_inf_has_none() -> None:
    moments = list(arrivals(5000, 20.0, seed=0))
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] / len(moments) == pytest.approx(1 / 20, rel=0.05)
    assert list(arrivals(3, math.inf, seed=0)) == [0, 0, 0]


def test_a_file_gives_prompts_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([{"prompt_tokens": [1, 2], "max_tokens": 4}]))
    (request,) = read_requests(file)
    assert (request.prompt_tokens, request.max_tokens) == ([1, 2], 4)
    file.write_text('[{"prompt_tokens": [1], "max_tokens": 0}]')
    with pytest.raises(BadRequestError, match="max_tokens"):
        read_requests(file)
    with pytest.raises(BadRequestError, match="missing"):
        read_requests(tmp_path / "missing.json")
