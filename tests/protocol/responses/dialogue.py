"""A client and an engine around a ResponsesSession; what it says is parsed by the `openai` package's own types."""

import itertools
import json
from typing import Any

import pydantic
from openai.types.responses.responses_server_event import ResponsesServerEvent

from protocol.messages import FinishReason, Timing, Usage
from protocol.responses import ResponsesSession
from protocol.wire import Accepted, Failed, Finished, Generate, SessionCommand, Tokens, Warm, WireLogprob
from tests.protocol.kept import KeptSession

CREATED_AT = 1_764_000_000.0
_events: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponsesServerEvent)


def parsed(frame: object) -> Any:
    """The frame as the package's type, strictly: no field missing, none that the package does not know."""
    assert isinstance(frame, str)
    event = _events.validate_python(json.loads(frame), strict=True)
    refuse_extras(event)
    return event


def refuse_extras(value: object) -> None:
    if isinstance(value, pydantic.BaseModel):
        assert not value.model_extra, (type(value).__name__, value.model_extra)
        for name in type(value).model_fields:
            refuse_extras(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            refuse_extras(item)


class Dialogue:
    """One connection; the engine's events are given by the test."""

    def __init__(self, *, max_model_len: int = 2048) -> None:
        numbers = itertools.count()
        self.responses = ResponsesSession(
            models=("demo", "other"),
            max_model_len=max_model_len,
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            clock=lambda: CREATED_AT,
        )
        self.session = KeptSession(self.responses)

    def say(self, **message: object) -> None:
        """Send a client event."""
        self.session.receive_frame(json.dumps(message))

    def create(self, **fields: object) -> Generate:
        """Ask for a response that begins at once."""
        self.say(type="response.create", **({"input": "Hi"} | fields))
        command = self.command()
        assert isinstance(command, Generate)
        return command

    def command(self) -> SessionCommand:
        """The one command that is waiting."""
        (command,) = self.session.take_commands()
        return command

    def begin(self, **fields: object) -> Generate:
        """Ask, and let the engine accept."""
        generate = self.create(**fields)
        self.accept(generate.id)
        return generate

    def answer(self, text: str = "Hello", **fields: object) -> str:
        """Ask, and let the engine answer in one piece; the response's id."""
        generate = self.begin(**fields)
        self.piece(generate.id, text)
        self.finish(generate.id)
        self.heard()
        return generate.id

    def accept(self, name: str) -> None:
        self.session.send_event(Accepted(id=name, prompt_tokens=3))

    def piece(self, name: str, text: str, *, logprobs: list[WireLogprob] | None = None) -> None:
        self.session.send_event(Tokens(id=name, index=0, count=1, text=text, logprobs=logprobs))

    def finish(self, name: str, reason: FinishReason = "stop", *, cached: int = 0) -> None:
        self.session.send_event(Finished(id=name, reason=reason, usage=Usage(3, cached, 2), timing=Timing()))

    def fail(self, failed: Failed) -> None:
        self.session.send_event(failed)

    def heard(self) -> list[Any]:
        """What the client hears, parsed."""
        return [parsed(frame) for frame in self.session.take_frames()]

    def error(self, **message: object) -> Any:
        """The one error that a message is answered with; nothing is commanded."""
        self.say(**message)
        (event,) = self.heard()
        assert event.type == "error"
        assert self.session.take_commands() == []
        return event


def warmed(command: SessionCommand) -> Generate:
    """The request inside a Warm."""
    assert isinstance(command, Warm)
    return command.generate
