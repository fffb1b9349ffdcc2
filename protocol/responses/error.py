"""Errors as this dialect says them: `{"type": "error", "status": …, "error": {type, code, message, param}}`."""

from typing import Any

from protocol.errors import ErrorCode, RequestError

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


class DialectError(RequestError):
    """A request error with a code that only this dialect knows (`previous_response_not_found`, `invalid_stream_id`)."""

    def __init__(self, dialect_code: str, message: str, *, param: str) -> None:
        super().__init__("invalid_request", message, param=param)
        self.dialect_code = dialect_code


def error_event(error: RequestError, stream_id: str | None) -> dict[str, Any]:
    """The event for a request that was not accepted."""
    status = _STATUS[error.code]
    details: dict[str, Any] = {
        "type": _TYPE.get(status, "invalid_request_error"),
        "code": error.dialect_code if isinstance(error, DialectError) else error.code,
        "message": error.message,
        "param": error.param,
    }
    if error.retry_after_ms is not None:
        seconds = -(-error.retry_after_ms // 1000)
        details["headers"] = {"retry-after": str(seconds), "retry-after-ms": str(error.retry_after_ms)}
    event: dict[str, Any] = {"type": "error", "status": status, "error": details}
    return event if stream_id is None else event | {"stream_id": stream_id}


def failure(code: ErrorCode, message: str, param: str | None) -> dict[str, Any]:
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
