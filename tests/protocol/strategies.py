"""Hypothesis strategies for what arrives on a socket."""

import math
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.protocol.frames import generate

integers = st.one_of(
    st.integers(-3, 130),
    st.sampled_from([-(2**63), 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]),
)
floats = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308]))
texts = st.one_of(st.text(max_size=8), st.sampled_from(["a", "b", "generate", "x" * 200, "\0", "👋", "`", "$.id[0]"]))
leaves = st.one_of(st.none(), st.booleans(), integers, floats, texts)

FIELDS = [
    "type", "id", "model", "messages", "prompt", "prompt_tokens", "max_tokens", "temperature", "top_p", "top_k",
    "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids",
    "ignore_eos", "min_tokens", "logprobs", "return_tokens", "slo", "ttft_ms", "priority", "cache_salt", "resumable",
    "credit", "resume_tokens", "tokens", "after", "resume_token", "nonce", "key", "role", "content", "nonsense",
]  # fmt: skip
KINDS = ["generate", "cancel", "credit", "resume", "ping", "authenticate"]


def values(keys: st.SearchStrategy[Any], extra: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Any value that an encoding can carry."""
    base = leaves if extra is None else leaves | extra
    return st.recursive(
        base,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=8,
    )


json_values = values(st.sampled_from(FIELDS) | texts)
msgpack_values = values(
    st.sampled_from(FIELDS) | texts | integers,
    st.binary(max_size=8) | st.builds(msgspec.msgpack.Ext, st.integers(-1, 127), st.binary(min_size=4, max_size=4)),
)


def messages(any_value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Valid messages with some fields replaced by anything."""
    valid = st.sampled_from(
        [
            generate(),
            generate(prompt=None, messages=[{"role": "user", "content": "Hi"}]),
            generate(prompt=None, prompt_tokens=[1], id="b"),
            {"type": "cancel", "id": "a"},
            {"type": "credit", "id": "a", "tokens": 3},
            {"type": "resume", "id": "b", "resume_token": "t", "after": 1},
            {"type": "ping", "nonce": 1},
            {"type": "authenticate", "key": "k"},
        ]
    )
    changes = st.dictionaries(st.sampled_from(FIELDS), any_value, max_size=3)
    return st.builds(lambda message, change: {**message, **change}, valid, changes)
