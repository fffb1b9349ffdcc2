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
floats = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -0.0, 0.5, 1.0]))
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


def messages(any_value: st.SearchStrategy[Any], bias_keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Valid messages, with fields that are nearly right, and with fields replaced by anything."""
    nearly_right = {
        "prompt": texts,
        "prompt_tokens": st.lists(integers, max_size=3),
        "messages": st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=3),
        "logit_bias": st.dictionaries(bias_keys, floats, max_size=3),
        "stop": st.lists(texts, max_size=3),
        "slo": st.fixed_dictionaries({}, optional={"ttft_ms": integers, "tpot_ms": integers}),
        "min_tokens": integers,
        "max_tokens": integers,
        "seed": integers,
        **dict.fromkeys(["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"], floats),
    }
    return st.builds(
        lambda message, nearly, wild: {**message, **nearly, **wild},
        valid_messages(),
        st.just({}) | st.one_of([st.fixed_dictionaries({name: value}) for name, value in nearly_right.items()]),
        st.just({}) | st.dictionaries(st.sampled_from(FIELDS), any_value, max_size=2),
    )


def valid_messages() -> st.SearchStrategy[dict[str, Any]]:
    """One message of each kind, about few ids."""
    names = st.sampled_from(["a", "b"])
    return st.one_of(
        st.builds(lambda name: generate(id=name), names),
        st.builds(lambda name: generate(prompt=None, messages=[{"role": "user", "content": "Hi"}], id=name), names),
        st.builds(lambda name: {"type": "cancel", "id": name}, names),
        st.builds(lambda name: {"type": "credit", "id": name, "tokens": 3}, names),
        st.builds(lambda name: {"type": "resume", "id": name, "resume_token": "t", "after": 1}, names),
        st.sampled_from([{"type": "ping", "nonce": 1}, {"type": "authenticate", "key": "k"}]),
    )


def broken_messages() -> st.SearchStrategy[dict[str, Any]]:
    """Messages about few ids that cannot be served."""
    return st.builds(lambda message: {**message, "nonsense": 1}, valid_messages())
