"""The OpenAI Responses dialect of `/v1/responses`, sans I/O. Read `session` first, then `answer`."""

from protocol.responses.session import ResponsesSession

__all__ = ["ResponsesSession"]
