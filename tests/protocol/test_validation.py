"""Refusals name the field, its value and the limit, whatever the frame holds."""

import math

import pytest

from protocol.session import Encoding
from tests.protocol.frames import accepted, generate, greeted, refused

MOST = "2,147,483,647"
SEED = "9,223,372,036,854,775,807"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 3.5}, "temperature", "temperature is 3.5; it must be between 0 and 2"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1; it must be between 0 and 2"),
        ({"temperature": True}, "temperature", "temperature is true; it must be a number between 0 and 2"),
        ({"temperature": "1"}, "temperature", "temperature is '1'; it must be a number between 0 and 2"),
        ({"top_p": 0}, "top_p", "top_p is 0; it must be more than 0 and at most 1"),
        ({"top_k": -2}, "top_k", f"top_k is -2; it must be between -1 and {MOST}"),
        ({"min_p": 1.01}, "min_p", "min_p is 1.01; it must be between 0 and 1"),
        ({"presence_penalty": 2.1}, "presence_penalty", "presence_penalty is 2.1; it must be between -2 and 2"),
        (
            {"repetition_penalty": 0},
            "repetition_penalty",
            "repetition_penalty is 0; it must be more than 0 and at most 2",
        ),
        ({"max_tokens": 0}, "max_tokens", f"max_tokens is 0; it must be between 1 and {MOST}"),
        ({"max_tokens": -1}, "max_tokens", f"max_tokens is -1; it must be between 1 and {MOST}"),
        ({"max_tokens": 2**31}, "max_tokens", f"max_tokens is 2,147,483,648; it must be between 1 and {MOST}"),
        ({"max_tokens": 1.5}, "max_tokens", f"max_tokens is 1.5; it must be an integer between 1 and {MOST}"),
        ({"seed": 2**64}, "seed", f"seed is 18,446,744,073,709,551,616; it must be between 0 and {SEED}"),
        ({"seed": -1}, "seed", f"seed is -1; it must be between 0 and {SEED}"),
        ({"seed": 1.0}, "seed", f"seed is 1.0; it must be an integer between 0 and {SEED}"),
        ({"prompt": 5}, "prompt", "prompt is 5; it must be text"),
        ({"prompt": ""}, "prompt", "prompt is empty; it must not be"),
        ({"prompt": None, "messages": []}, "messages", "messages is empty; it must not be"),
        ({"prompt": None, "prompt_tokens": []}, "prompt_tokens", "prompt_tokens is empty; it must not be"),
        ({"prompt_tokens": [1, -1]}, "prompt_tokens[1]", f"prompt_tokens[1] is -1; it must be between 0 and {MOST}"),
        (
            {"prompt_tokens": [2**31]},
            "prompt_tokens[0]",
            f"prompt_tokens[0] is 2,147,483,648; it must be between 0 and {MOST}",
        ),
        ({"messages": {}}, "messages", "messages is an object; it must be a list"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content",
            "messages[0].content is 3; it must be text",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing; it is required"),
        (
            {"messages": [{"role": "user", "content": "", "name": "x"}]},
            "messages[0].name",
            "messages[0].name is not a known field",
        ),
        ({"stop": "\n"}, "stop", "stop is '\\n'; it must be a list of at most 16 items"),
        ({"stop": ["x"] * 17}, "stop", "stop has 17 items; it must have at most 16 items"),
        ({"stop": [""]}, "stop[0]", "stop[0] has 0 characters; it must have between 1 and 4,096 characters"),
        ({"logprobs": 21}, "logprobs", "logprobs is 21; it must be between 0 and 20"),
        ({"slo": {"ttft_ms": 0}}, "slo.ttft_ms", f"slo.ttft_ms is 0; it must be between 1 and {MOST}"),
        ({"slo": {"p99": 1}}, "slo.p99", "slo.p99 is not a known field"),
        ({"priority": 11}, "priority", "priority is 11; it must be between -10 and 10"),
        ({"cache_salt": "x" * 257}, "cache_salt", "cache_salt has 257 characters; it must have at most 256 characters"),
        ({"return_tokens": 1}, "return_tokens", "return_tokens is 1; it must be true or false"),
        ({"credit": -1}, "credit", f"credit is -1; it must be between 0 and {MOST}"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias[5] is 101; it must be between -100 and 100"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "logit_bias[5] is '1'; it must be a number between -100 and 100"),
        (
            {"logit_bias": {"-5": 1}},
            "logit_bias",
            f"logit_bias has the key '-5'; it must be an integer between 0 and {MOST}",
        ),
        ({"best_of": 2}, "best_of", "best_of is not a known field"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "min_tokens is 5; it must be at most max_tokens, 4"),
        (
            {"prompt": None},
            "messages",
            "messages is missing; exactly one of messages, prompt and prompt_tokens must be given",
        ),
        (
            {"prompt_tokens": [1]},
            "prompt_tokens",
            "prompt_tokens is given beside prompt; exactly one of messages, prompt and prompt_tokens must be given",
        ),
    ],
)
def test_a_field_value_and_limit_are_named(fields: dict[str, object], param: str, message: str) -> None:
    failed = refused(generate(**fields))
    assert failed == {"type": "failed", "id": "a", "code": "invalid_request", "message": message, "param": param}


def test_another_model_is_not_found() -> None:
    failed = refused(generate(model="gpt"))
    assert failed["code"] == "model_not_found"
    assert failed["param"] == "model"
    assert failed["message"] == "model is 'gpt'; this server serves demo"


@pytest.mark.parametrize("kind", ["", "nope", 4, None, ["generate"]])
def test_an_unknown_type_keeps_the_id(kind: object) -> None:
    failed = refused({"type": kind, "id": "a"})
    assert (failed["id"], failed["param"], failed["code"]) == ("a", "type", "invalid_request")


@pytest.mark.parametrize("name", ["", "x" * 129, 4, None, ["a"], True])
def test_an_unusable_id_is_the_param_and_is_not_echoed(name: object) -> None:
    failed = refused({"type": "generate", "id": name, "prompt": "x"})
    assert "id" not in failed
    assert failed["param"] == "id"


def test_long_values_and_names_are_shortened() -> None:
    failed = refused(generate(temperature="x" * 10_000))
    assert len(failed["message"]) < 150
    failed = refused(generate(**{"x" * 10_000: 1}))
    assert len(failed["param"]) < 100
    assert len(failed["message"]) < 150


def test_huge_integers_are_refused_by_their_size() -> None:
    failed = refused(generate(temperature=10**400))
    assert failed["message"] == "temperature is an integer of 1329 bits; it must be between 0 and 2"
    assert refused(generate(seed=10**400))["param"] == "seed"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"],
)
def test_numbers_that_are_not_finite_are_refused_over_msgpack(name: str, value: float) -> None:
    failed = refused(generate(**{name: value}), "msgpack")
    assert failed["param"] == name
    assert failed["message"].startswith(f"{name} is {value}; it must be ")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bias_that_is_not_finite_is_refused_over_msgpack(value: float) -> None:
    failed = refused(generate(logit_bias={3: value}), "msgpack")
    assert failed["param"] == "logit_bias"
    assert failed["message"] == f"logit_bias[3] is {value}; it must be between -100 and 100"


def test_integers_do_as_numbers() -> None:
    assert accepted(generate(temperature=2)).temperature == 2
    assert accepted(generate(logit_bias={"1": 3})).logit_bias == {1: 3}


def test_null_is_the_same_as_absent() -> None:
    session = greeted()
    session.receive_frame('{"type":"generate","id":"a","prompt":"x","temperature":null,"messages":null,"slo":null}')
    (command,) = session.take_commands()
    assert command == accepted(generate(prompt="x"))


@pytest.mark.parametrize(
    "value",
    [b"binary", {b"role": "user"}, [b"x"], 2**64 - 1, [[]]],
)
def test_types_that_only_msgpack_has_are_refused(value: object) -> None:
    assert refused(generate(prompt=value), "msgpack")["param"] == "prompt"


def test_keys_that_are_not_text_are_refused() -> None:
    failed = refused({"type": "generate", "id": "a", "prompt": "x", 3: 4}, "msgpack")
    assert failed["id"] == "a"
    assert "key that is not text" in failed["message"]


def test_text_keys_of_a_bias_are_refused_over_msgpack() -> None:
    assert refused(generate(logit_bias={"5": 1}), "msgpack")["param"] == "logit_bias"


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    "name",
    [
        "x` - at `$.stop[99999999999999999999]",
        "x` - at `$.stop[9]",
        "x` - at `key` in `$.logit_bias",
        "x` - at `$.logit_bias[...]",
        "`",
        "\n",
        "$.messages[0]",
    ],
)
def test_a_field_name_that_looks_like_a_path_is_named_all_the_same(name: str, encoding: Encoding) -> None:
    failed = refused(generate(**{name: 1, "stop": ["x"], "logit_bias": {}}), encoding)
    assert failed["id"] == "a"
    assert failed["param"] == name
    nested = [{"role": "user", "content": "x", name: 1}]
    assert refused(generate(prompt=None, messages=nested), encoding)["param"] == f"messages[0].{name}"
