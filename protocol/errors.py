"""Every error a request can end with, and nothing else.

    TokenstageError
    ├── RequestError(code, message, param, retry_after_ms)   bad input or a refusal; goes to that client only
    └── PartFailed                                           a part broke; goes to its supervisor

A RequestError is a value on the wire (`failed`), never a traceback. Read `protocol.wire` next.
"""

from typing import Literal, get_args

ErrorCode = Literal[
    "invalid_request",
    "unauthenticated",
    "model_not_found",
    "duplicate_id",
    "unknown_id",
    "context_length_exceeded",
    "overloaded",
    "slo_unattainable",
    "draining",
    "resume_expired",
    "internal",
]
ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)


class TokenstageError(Exception):
    """Root of the tree."""


class RequestError(TokenstageError):
    """One request cannot be served; `param` names the field, the message its value and the limit."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms


def invalid(param: str | None, message: str) -> RequestError:
    """Bad input: `message` names `param`, its value and the limit."""
    return RequestError("invalid_request", message, param=param)


class PartFailed(TokenstageError):  # noqa: N818 - it names what happened
    """A part of the engine cannot go on; its supervisor applies the written policy."""
