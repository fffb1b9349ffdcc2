"""The published schema is checked with an independent validator against examples of every message."""

import subprocess
import sys
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it brings no types
import msgspec
import pytest

from protocol.messages import Timing, Usage
from protocol.schema import wire_schema
from protocol.wire import (
    Accepted,
    Draining,
    Event,
    Failed,
    Finished,
    Pong,
    Tokens,
    WireLogprob,
    WireTopLogprob,
)
from tests.protocol.frames import HELLO, generate

COMMANDS: list[dict[str, Any]] = [
    generate(),
    generate(prompt=None, messages=[{"role": "user", "content": "Hi"}], slo={"ttft_ms": 5}, logit_bias={"3": -1.5}),
    generate(prompt=None, prompt_tokens=[1, 2], temperature=0, stop=["x"], seed=2**63 - 1, resume_tokens=[4]),
    {"type": "cancel", "id": "a"},
    {"type": "credit", "id": "a", "tokens": 1},
    {"type": "resume", "id": "a", "resume_token": "t", "after": 0},
    {"type": "ping"},
    {"type": "ping", "nonce": "x"},
    {"type": "authenticate", "key": "k"},
]
TOP = [WireTopLogprob(token=1, logprob=-1.0, text="x")]
EVENTS: list[Event] = [
    HELLO,
    Accepted(id="a", prompt_tokens=1),
    Pong(nonce="x"),
    Draining(deadline_ms=1),
    Tokens(id="a", index=0, count=1, text="x", tokens=[1], logprobs=[WireLogprob(token=1, logprob=-1.0, top=TOP)]),
    Finished(id="a", reason="stop", usage=Usage(), timing=Timing(ttft_ms=1.0), stop=7),
    Failed(code="overloaded", message="m", retry_after_ms=5),
]
WRONG: list[dict[str, Any]] = [
    {},
    {"type": "nope"},
    {"type": "cancel"},
    generate(id=""),
    generate(id="x" * 129),
    generate(temperature=2.1),
    generate(max_tokens=0),
    generate(seed=2**63),
    generate(stop=["x"] * 17),
    generate(unknown=1),
    generate(messages=[{"role": "user"}]),
]


def validator(name: str) -> Any:
    schema = wire_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


@pytest.mark.parametrize("message", COMMANDS)
def test_the_schema_accepts_what_a_client_may_send(message: dict[str, Any]) -> None:
    validator("ClientMessage").validate(message)


@pytest.mark.parametrize("event", EVENTS)
def test_the_schema_accepts_what_the_server_sends(event: Event) -> None:
    validator("ServerMessage").validate(msgspec.to_builtins(event, str_keys=True))


@pytest.mark.parametrize("message", WRONG)
def test_the_schema_refuses_what_the_session_refuses(message: dict[str, Any]) -> None:
    assert not validator("ClientMessage").is_valid(message)


def test_documented_bounds_are_in_the_schema() -> None:
    fields = wire_schema()["$defs"]["Generate"]["properties"]
    number = {name: fields[name]["anyOf"][0] for name in ("temperature", "top_p", "seed", "max_tokens", "logprobs")}
    assert (number["temperature"]["minimum"], number["temperature"]["maximum"]) == (0, 2)
    assert (number["top_p"]["exclusiveMinimum"], number["top_p"]["maximum"]) == (0, 1)
    assert number["seed"]["maximum"] == 2**63 - 1
    assert number["max_tokens"]["minimum"] == 1
    assert number["logprobs"]["maximum"] == 20
    assert fields["stop"]["anyOf"][0]["maxItems"] == 16
    assert (fields["id"]["minLength"], fields["id"]["maxLength"]) == (1, 128)
    assert (fields["priority"]["minimum"], fields["priority"]["maximum"]) == (-10, 10)
    assert fields["credit"]["default"] == 4096


def test_the_module_prints_the_schema() -> None:
    printed = subprocess.run([sys.executable, "-m", "protocol.schema"], capture_output=True, check=True)
    assert msgspec.json.decode(printed.stdout) == wire_schema()
