"""One response as this dialect tells it: the events from `response.created` to the terminal one, in their fixed order.

    created, in_progress                                 accepted
    output_item.added, content_part.added                before the first delta, or at the end if there is none
    output_text.delta, each                              a piece of text came
    output_text.done, content_part.done, output_item.done, then completed | incomplete | failed

A cancelled response ends as `response.incomplete` with status `cancelled` and no reason, as the dialect has no event of
its own for it. A warmed one has no output item. Errors stand below: of a request that was not accepted, of a response.
Shapes are those of the `openai` package's types.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from protocol.errors import ErrorCode, RequestError
from protocol.messages import Usage
from protocol.responses.create import Create
from protocol.wire import ChatMessage, Failed, Finished, Tokens, WireLogprob, WireTopLogprob, finite_logprob

Event = dict[str, Any]

_STATUS: dict[ErrorCode, int] = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "unauthenticated": 401,
    "model_not_found": 404,
    "unknown_id": 404,
    "resume_expired": 404,
    "duplicate_id": 409,
    "overloaded": 429,
    "slo_unattainable": 429,
    "internal": 500,
    "draining": 503,
}
_TYPE = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
_PARAM = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
_INPUT = ("messages", "prompt", "prompt_tokens")


class Answer:
    """State of one response. Its methods return the events to send; the session encodes them."""

    def __init__(self, create: Create, response_id: str, item_id: str, clock: Callable[[], float]) -> None:
        self.create = create
        self.history: tuple[ChatMessage, ...] = ()
        """Earlier turns it goes on from."""
        self.is_accepted = False
        self.id = response_id
        self._item_id = item_id
        self._clock = clock
        self._created_at = clock()
        self._sequence = 0
        self._has_item = False
        self._pieces: list[str] = []
        self._logprobs: list[Event] = []

    def accepted(self) -> list[Event]:
        """The request is queued."""
        if self.is_accepted:
            return []
        self.is_accepted = True
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def tokens(self, event: Tokens) -> list[Event]:
        """A piece of text arrived."""
        logprobs = [_logprob(finite_logprob(one)) for one in event.logprobs or ()]
        self._logprobs += logprobs
        if not event.text:
            return []
        opening = self._open_item()
        self._pieces.append(event.text)
        delta = self._item_event(
            "response.output_text.delta",
            content_index=0,
            delta=event.text,
            logprobs=[_delta_logprob(one) for one in logprobs],
        )
        return [*opening, delta]

    def finished(self, event: Finished) -> list[Event]:
        """The engine is done; the last event is terminal."""
        events = self.accepted()
        usage = _usage(event.usage)
        if self.create.warms:
            return [*events, self._end("response.completed", "completed", [], usage=usage)]
        complete = event.reason == "stop"
        item = self._message("completed" if complete else "incomplete")
        events += [*self._open_item(), *self._close_item(item)]
        if complete:
            return [*events, self._end("response.completed", "completed", [item], usage=usage)]
        if event.reason == "cancelled":
            return [*events, self._end("response.incomplete", "cancelled", [item], usage=usage)]
        details = {"reason": "max_output_tokens"}
        return [
            *events,
            self._end("response.incomplete", "incomplete", [item], usage=usage, incomplete_details=details),
        ]

    def failed(self, event: Failed) -> list[Event]:
        """It broke after it was accepted."""
        output = [self._message("incomplete")] if self._has_item else []
        error = failure(event.code, event.message, event.param)
        return [self._end("response.failed", "failed", output, error=error)]

    def turns(self) -> tuple[ChatMessage, ...]:
        """Everything a later response goes on from."""
        said = (*self.history, *self.create.messages)
        return said if self.create.warms else (*said, ChatMessage(role="assistant", content=self._text()))

    def _open_item(self) -> list[Event]:
        if self._has_item:
            return []
        self._has_item = True
        return [
            self._event("response.output_item.added", output_index=0, item=self._message("in_progress", empty=True)),
            self._item_event("response.content_part.added", content_index=0, part=_part("", [])),
        ]

    def _close_item(self, item: Event) -> list[Event]:
        logprobs = [_delta_logprob(one) for one in self._logprobs]
        return [
            self._item_event("response.output_text.done", content_index=0, text=self._text(), logprobs=logprobs),
            self._item_event("response.content_part.done", content_index=0, part=item["content"][0]),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _end(self, kind: str, status: str, output: list[Event], **fields: Event | None) -> Event:
        completed_at = self._clock() if status == "completed" else None
        response = self._response(status) | {"output": output, "completed_at": completed_at} | fields
        return self._event(kind, response=response)

    def _message(self, status: str, *, empty: bool = False) -> Event:
        content = [] if empty else [_part(self._text(), self._logprobs)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def _item_event(self, kind: str, **fields: object) -> Event:
        return self._event(kind, item_id=self._item_id, output_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> Event:
        event: Event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        if self.create.stream_id is not None:
            event["stream_id"] = self.create.stream_id
        return event

    def _response(self, status: str) -> Event:
        fields = self.create.fields
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": None,
            "metadata": fields.metadata or {},
            "model": self.create.model,
            "output": [],
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": fields.previous_response_id,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": fields.safety_identifier,
            "service_tier": "default",
            "temperature": fields.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": fields.tool_choice or "auto",
            "tools": [],
            "top_logprobs": fields.top_logprobs or 0,
            "top_p": fields.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": fields.user,
        }


def _part(text: str, logprobs: list[Event]) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(usage: Usage) -> Event:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _logprob(logprob: WireLogprob) -> Event:
    return {**_token(logprob), "top_logprobs": [_token(one) for one in logprob.top]}


def _token(one: WireLogprob | WireTopLogprob) -> Event:
    """A token by its text, or by its id where its text is not known."""
    text = f"token_id:{one.token}" if one.text is UNSET else one.text
    return {"token": text, "bytes": list(text.encode()), "logprob": one.logprob}


def _delta_logprob(logprob: Event) -> Event:
    """The shape inside text events, which has no bytes."""
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in logprob["top_logprobs"]]
    return {"token": logprob["token"], "logprob": logprob["logprob"], "top_logprobs": top}


class DialectError(RequestError):
    """A request error with a code that only this dialect knows (`previous_response_not_found`, `invalid_stream_id`)."""

    def __init__(self, dialect_code: str, message: str, *, param: str) -> None:
        super().__init__("invalid_request", message, param=param)
        self.dialect_code = dialect_code


def error_event(error: RequestError, stream_id: str | None) -> Event:
    """The event for a request that was not accepted: `{"type": "error", "status": …, "error": {type, code, …}}`."""
    status = _STATUS[error.code]
    details: Event = {
        "type": _TYPE.get(status, "invalid_request_error"),
        "code": error.dialect_code if isinstance(error, DialectError) else error.code,
        "message": error.message,
        "param": error.param,
    }
    if error.retry_after_ms is not None:
        seconds = -(-error.retry_after_ms // 1000)
        details["headers"] = {"retry-after": str(seconds), "retry-after-ms": str(error.retry_after_ms)}
    event: Event = {"type": "error", "status": status, "error": details}
    return event if stream_id is None else event | {"stream_id": stream_id}


def failure(code: ErrorCode, message: str, param: str | None) -> Event:
    """The `error` of a response that was accepted and failed."""
    kind = "server_error"
    if _STATUS[code] == 429:
        kind = "rate_limit_exceeded"
    elif _STATUS[code] == 400:
        kind = "invalid_prompt"
    return {"code": kind, "message": message, "param": dialect_param(param), "type": code}


def dialect_param(param: str | None) -> str | None:
    """The name this dialect has for a field of Generate."""
    if param is None:
        return None
    return "input" if param.startswith(_INPUT) else _PARAM.get(param, param)
