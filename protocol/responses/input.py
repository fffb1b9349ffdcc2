"""Reads `input`: a text, or a list of message items whose content is a text or a list of text parts."""

from collections.abc import Iterator

from protocol.errors import RequestError
from protocol.validation import shown
from protocol.wire import ChatMessage

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_messages(given: object) -> list[ChatMessage]:
    """The messages of one `input`, oldest first; none if it is missing. RequestError names the item that is wrong."""
    if given is None:
        return []
    if isinstance(given, str):
        if not given:
            raise _invalid("input", "input is empty; it must not be")
        return [ChatMessage(role="user", content=given)]
    if not isinstance(given, list):
        raise _invalid("input", f"input is {shown(given)}; it must be text or a list of messages")
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _read_item(item: object, param: str) -> ChatMessage:
    if not isinstance(item, dict):
        raise _invalid(param, f"{param} is {shown(item)}; it must be a message")
    kind = item.get("type")
    if kind not in (None, "message"):
        raise _invalid(f"{param}.type", f"{param}.type is {shown(kind)}; only messages are supported")
    given = item.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        message = f"{param}.role is {shown(given)}; it must be user, assistant, system or developer"
        raise _invalid(f"{param}.role", message)
    return ChatMessage(role=role, content=_read_content(item.get("content"), f"{param}.content"))


def _read_content(content: object, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(param, f"{param} is {shown(content)}; it must be text or a list of text parts")
    return "\n".join(_read_parts(content, param))


def _read_parts(parts: list[object], param: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        place = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise _invalid(place, f"{place} is {shown(part)}; it must be a text part")
        kind = part.get("type")
        field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if field is None:
            raise _invalid(f"{place}.type", f"{place}.type is {shown(kind)}; only text parts are supported")
        text = part.get(field)
        if not isinstance(text, str):
            raise _invalid(f"{place}.{field}", f"{place}.{field} is {shown(text)}; it must be text")
        yield text


def _invalid(param: str, message: str) -> RequestError:
    return RequestError("invalid_request", message, param=param)
