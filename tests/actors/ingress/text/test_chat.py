"""Rendering is compared with `transformers`, which runs the same templates for everyone else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.ingress.text import chat
from actors.ingress.text.chat import ChatTemplate
from protocol.errors import RequestError
from protocol.wire import ChatMessage
from tests.actors.ingress.text.chat_templates import TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
Turns = list[tuple[str, str]]
Reference = Callable[[str, Turns], str]

CONVERSATIONS: list[Turns] = [
    [("user", "Hi")],
    [("system", "Be brief.  "), ("user", " What's <b>2 & 2</b>? 😀\n"), ("assistant", " 4 "), ("user", "“why”")],
    [("user", "a"), ("assistant", ""), ("user", "")],
    [("user", "a"), ("user", "b")],
    [("assistant", "a")],
    [("tool", "{}"), ("tool", "x")],
    [("user", "{{ 7 * 7 }} {% raw %}")],
]


def messages(turns: Turns) -> list[ChatMessage]:
    return [ChatMessage(role=role, content=content) for role, content in turns]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """The text, or the exception's, that `transformers` gives."""
    from jinja2 import TemplateError  # noqa: PLC0415 - beside the import that it belongs to
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 - seconds, only here

    def render(template: str, turns: Turns) -> str:
        tokens: Any = TOKENS
        conversation = [{"role": role, "content": content} for role, content in turns]
        try:
            rendered = render_jinja_template(
                [conversation],
                chat_template=template,
                add_generation_prompt=True,
                **tokens,
            )
        except TemplateError as error:
            return f"refused: {error}"
        return str(rendered[0][0])

    return render


def ours(template: str, turns: Turns) -> str:
    try:
        return ChatTemplate(template, TOKENS).render(messages(turns))
    except RequestError as error:
        return error.message.replace("the model's chat template refuses these messages", "refused")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_a_chat_reads_as_transformers_renders_it(reference: Reference, name: str, turns: Turns) -> None:
    assert ours(TEMPLATES[name], turns) == reference(TEMPLATES[name], turns)


@pytest.mark.parametrize("name", TEMPLATES)
def test_any_chat_reads_as_transformers_renders_it(reference: Reference, name: str) -> None:
    role = st.sampled_from(["user", "assistant", "system", "tool", "nobody"])

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.tuples(role, st.text(max_size=20)), min_size=1, max_size=6))
    def check(turns: Turns) -> None:
        assert ours(TEMPLATES[name], turns) == reference(TEMPLATES[name], turns)

    check()


def test_an_empty_conversation_is_refused_before_any_template_sees_it() -> None:
    with pytest.raises(RequestError, match="messages is empty"):
        ChatTemplate("anything", {}).render([])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.x }}",
        "{{ ''.__class__.__mro__ }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ 'x'.format(1, 2).no_such() }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.fromkeys('ab') }}",
    ],
)
def test_whatever_a_template_raises_is_an_answer_to_that_client(template: str) -> None:
    with pytest.raises(RequestError, match="chat template refuses") as caught:
        ChatTemplate(template, {}).render(messages([("user", "Hi")]))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")


def test_a_template_that_writes_without_end_is_stopped() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}0123456789{{ j }}{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="wrote more than"):
        ChatTemplate(endless, {}).render(messages([("user", "Hi")]))


def test_a_template_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_RENDER_S", -1.0)
    with pytest.raises(RequestError, match="took longer"):
        ChatTemplate(TEMPLATES["chatml"], {}).render(messages([("user", "Hi")]))


def write_config(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def render_from(folder: Path) -> str:
    template = ChatTemplate.load(folder)
    assert template is not None
    return template.render(messages([("user", "Hi")]))


def test_a_template_is_read_from_the_tokenizer_configuration(tmp_path: Path) -> None:
    assert render_from(write_config(tmp_path, chat_template="A {{ messages[0].content }}")) == "A Hi"


def test_a_template_file_outranks_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("B {{ messages[0].content }}")
    assert render_from(write_config(tmp_path, chat_template="A")) == "B Hi"


def test_of_several_templates_the_default_one_is_used(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert render_from(write_config(tmp_path, chat_template=templates)) == "D"


def test_special_tokens_are_plain_or_described_and_have_a_second_home(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<map>", "pad_token": "<pad>"}))
    tokens = {"bos_token": "<b>", "eos_token": {"content": "<e>"}, "unk_token": None}
    template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}"
    write_config(tmp_path, chat_template=template, **tokens)
    assert render_from(tmp_path) == "<b><e><pad>"


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None


def test_a_template_with_a_syntax_error_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="syntax error in line 2"):
        ChatTemplate.load(write_config(tmp_path, chat_template="x\n{% if %}"))


def test_a_broken_configuration_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not a JSON object"):
        ChatTemplate.load(tmp_path)
