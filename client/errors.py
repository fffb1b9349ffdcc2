"""Every error this library raises; the names follow the `openai` package.

APIError(message, code, param, request_id)
├── APIConnectionError            the server cannot be reached, or the socket broke and could not be mended
│   └── APITimeoutError           a connect, first-token, idle or total timeout passed
└── APIStatusError                the server (or the check before sending) refused this request
    ├── BadRequestError           invalid_request, context_length_exceeded, resume_expired
    ├── AuthenticationError       unauthenticated
    ├── NotFoundError             model_not_found, unknown_id
    ├── ConflictError             duplicate_id
    ├── OverloadedError           overloaded, slo_unattainable, draining; `retry_after_ms` is the server's hint
    └── InternalServerError       internal
"""

from copy import copy
from typing import Self

from protocol.errors import ErrorCode
from protocol.wire import Failed


class APIError(Exception):
    """Root. `code` is the server's code (None for connection trouble), `param` the field at fault, if one is."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after_ms = retry_after_ms

    def for_request(self, request_id: str) -> Self:
        """The same error of one of the requests that it concerns (each raises its own object)."""
        own = copy(self)
        own.request_id = request_id
        return own


class APIConnectionError(APIError):
    """No answer can come: not connected, or the connection was lost and not regained."""


class APITimeoutError(APIConnectionError):
    """One of the timeouts passed; the message says which."""


class APIStatusError(APIError):
    """This request was refused or failed; others are untouched."""


class BadRequestError(APIStatusError):
    """A field is wrong; `param` names it."""


class AuthenticationError(APIStatusError):
    """The key is missing or wrong."""


class NotFoundError(APIStatusError):
    """No such model, or no such request."""


class ConflictError(APIStatusError):
    """A live request has this id already."""


class OverloadedError(APIStatusError):
    """Not now; `retry_after_ms` says when to try again, if the server knows."""


class InternalServerError(APIStatusError):
    """A part of the server failed."""


_CLASSES: dict[ErrorCode, type[APIStatusError]] = {
    "invalid_request": BadRequestError,
    "context_length_exceeded": BadRequestError,
    "resume_expired": BadRequestError,
    "unauthenticated": AuthenticationError,
    "model_not_found": NotFoundError,
    "unknown_id": NotFoundError,
    "duplicate_id": ConflictError,
    "overloaded": OverloadedError,
    "slo_unattainable": OverloadedError,
    "draining": OverloadedError,
    "internal": InternalServerError,
}


def status_error(failed: Failed, prefix: str = "") -> APIStatusError:
    """The error that stands for what the server said; its request is not named yet."""
    kind = _CLASSES[failed.code]
    message = prefix + failed.message
    return kind(message, code=failed.code, param=failed.param, retry_after_ms=failed.retry_after_ms)
