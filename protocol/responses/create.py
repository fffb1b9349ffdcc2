"""Reads `response.create`: bounds, its messages, what is refused as not supported, and the Generate it becomes.

Unknown fields are ignored, as stock clients may send any that their package knows; a field that would change the
meaning of the answer and is not supported is refused, so that nobody takes plain text for what they asked.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from protocol.bounds import MAX_INT31, PositiveCount
from protocol.errors import RequestError, invalid
from protocol.sampling import NumLogprobs, Temperature, TopP
from protocol.validation import check_generate, check_model, read_fields, shown
from protocol.wire import ChatMessage, Generate

LOGPROBS = "message.output_text.logprobs"

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

_MetadataKey = Annotated[str, Meta(max_length=64)]
_MetadataValue = Annotated[str, Meta(max_length=512)]


class CreateFields(Struct, frozen=True, kw_only=True):
    """The fields of `response.create` that are read."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_output_tokens: PositiveCount | None = None
    metadata: Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=16)] | None = None
    previous_response_id: str | None = None
    generate: bool | None = None
    include: list[str] | None = None
    top_logprobs: NumLogprobs | None = None
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    tools: Any = None
    tool_choice: Any = None
    text: Any = None
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None
    prompt_cache_options: Any = None


class Create(Struct, frozen=True, kw_only=True):
    """One readable `response.create`."""

    fields: CreateFields
    model: str
    stream_id: str | None
    messages: tuple[ChatMessage, ...]
    """The new turn alone, without instructions and earlier turns."""

    @property
    def warms(self) -> bool:
        """No answer is wanted, only its prompt in the prefix cache."""
        options = self.fields.prompt_cache_options
        return self.fields.generate is False or (isinstance(options, dict) and options.get("prewarm") is True)

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report for each token; None is no log-probabilities at all."""
        if self.fields.top_logprobs is None and LOGPROBS not in (self.fields.include or ()):
            return None
        return self.fields.top_logprobs or 0


def read_create(fields: dict[str, object], stream_id: str | None, models: tuple[str, ...]) -> Create:
    """RequestError names the field that is wrong or not supported."""
    nested = fields.get("response")
    if isinstance(nested, dict):
        fields = fields | nested
    read = read_fields(fields, CreateFields, str_keys=True)
    _refuse_unsupported(read)
    check_model(read.model, models)
    messages = tuple(read_messages(read.input))
    return Create(fields=read, model=read.model or models[0], stream_id=stream_id, messages=messages)


def to_generate(create: Create, response_id: str, history: tuple[ChatMessage, ...], max_model_len: int) -> Generate:
    """The same request in the engine's words, after the turns of `history`; RequestError if nothing is asked.

    `max_output_tokens` is an upper bound here: one that the model's limit makes idle is left out.
    """
    fields = create.fields
    system = [ChatMessage(role="system", content=fields.instructions)] if fields.instructions else []
    if not history and not create.messages:
        raise RequestError("invalid_request", "input is missing; it is required", param="input")
    most = fields.max_output_tokens
    generate = Generate(
        id=response_id,
        model=create.model,
        messages=[*system, *history, *create.messages],
        max_tokens=None if most is None or most >= max_model_len else most,
        temperature=fields.temperature,
        top_p=fields.top_p,
        logprobs=create.num_logprobs,
        credit=MAX_INT31,
    )
    check_generate(generate, (create.model,))
    return generate


def _refuse_unsupported(fields: CreateFields) -> None:
    if fields.tools:
        raise invalid("tools", "tools are not supported; leave the list empty")
    if fields.tool_choice not in (None, "auto", "none"):
        raise invalid("tool_choice", "tools are not supported; tool_choice must be auto or none")
    output = fields.text.get("format") if isinstance(fields.text, dict) else None
    kind = output.get("type") if isinstance(output, dict) else output
    if kind not in (None, "text"):
        raise invalid("text.format", f"text.format is {shown(kind)}; only text is supported")
    if fields.background:
        raise invalid("background", "background is not supported over a WebSocket")
    for name in ("conversation", "prompt", "moderation", "context_management"):
        if getattr(fields, name):
            raise invalid(name, f"{name} is not supported by this server")


def read_messages(given: object) -> list[ChatMessage]:
    """The messages of one `input`, oldest first; none if it is missing. RequestError names the item that is wrong."""
    if given is None:
        return []
    if isinstance(given, str):
        if not given:
            raise invalid("input", "input is empty; it must not be")
        return [ChatMessage(role="user", content=given)]
    if not isinstance(given, list):
        raise invalid("input", f"input is {shown(given)}; it must be text or a list of messages")
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _read_item(item: object, param: str) -> ChatMessage:
    if not isinstance(item, dict):
        raise invalid(param, f"{param} is {shown(item)}; it must be a message")
    kind = item.get("type")
    if kind not in (None, "message"):
        raise invalid(f"{param}.type", f"{param}.type is {shown(kind)}; only messages are supported")
    given = item.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        message = f"{param}.role is {shown(given)}; it must be user, assistant, system or developer"
        raise invalid(f"{param}.role", message)
    return ChatMessage(role=role, content=_read_content(item.get("content"), f"{param}.content"))


def _read_content(content: object, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(param, f"{param} is {shown(content)}; it must be text or a list of text parts")
    return "\n".join(_read_parts(content, param))


def _read_parts(parts: list[object], param: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        place = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise invalid(place, f"{place} is {shown(part)}; it must be a text part")
        kind = part.get("type")
        field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if field is None:
            raise invalid(f"{place}.type", f"{place}.type is {shown(kind)}; only text parts are supported")
        text = part.get(field)
        if not isinstance(text, str):
            raise invalid(f"{place}.{field}", f"{place}.{field} is {shown(text)}; it must be text")
        yield text
