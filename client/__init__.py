"""Talk to a tokenstage server: `async with Client("ws://127.0.0.1:8765") as client`. Imports `protocol` only."""

from client.client import Client, Model
from client.endpoint import Reconnect
from client.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    OverloadedError,
)
from client.fields import GenerateFields
from client.stream import Stream, Timeouts
from client.stream_state import Result, StreamItem

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "Client",
    "ConflictError",
    "GenerateFields",
    "InternalServerError",
    "Model",
    "NotFoundError",
    "OverloadedError",
    "Reconnect",
    "Result",
    "Stream",
    "StreamItem",
    "Timeouts",
]
