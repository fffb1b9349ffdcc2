import json
from pathlib import Path

import pytest

from client.conversation import Conversation, run_command
from protocol.wire import ChatMessage


def run(line: str, conversation: Conversation | None = None) -> str:
    text = run_command(line, conversation or Conversation(), stats="")
    assert text is not None
    return text


def test_help_lists_every_command() -> None:
    text = run("/help")
    assert all(name in text for name in ("/system", "/set", "/clear", "/save", "/load", "/stats", "/bye"))


def test_bye_ends_and_nothing_else_does() -> None:
    assert run_command("/bye", Conversation(), stats="") is None
    assert run_command("/help", Conversation(), stats="") is not None


def test_the_system_prompt_comes_first_and_can_be_removed() -> None:
    conversation = Conversation()
    conversation.ask("Hi")
    run("/system Be brief.", conversation)
    assert [message.role for message in conversation.messages()] == ["system", "user"]
    run("/system -", conversation)
    assert [message.role for message in conversation.messages()] == ["user"]


def test_settings_are_typed_checked_shown_and_reset() -> None:
    conversation = Conversation()
    assert run("/set temperature 0.5", conversation) == "temperature = 0.5"
    assert run("/set top-k 40", conversation) == "top_k = 40"
    assert conversation.settings == {"temperature": 0.5, "top_k": 40}
    assert "0.5" in run("/set", conversation)
    assert run("/set temperature", conversation) == "temperature = 0.5; 0 is greedy, up to 2"
    assert run("/set seed", conversation).startswith("seed = (default)")
    run("/set temperature -", conversation)
    assert conversation.settings == {"top_k": 40}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature 3", "between 0 and 2"),
        ("/set temperature warm", "cannot be 'warm'"),
        ("/set colour red", "no setting 'colour'"),
        ("/save", "wants a file name"),
        ("/load /nonexistent/chat.json", "/nonexistent/chat.json: No such file"),
        ("/dance", "no command /dance"),
    ],
)
def test_a_mistake_is_answered_and_changes_nothing(line: str, words: str) -> None:
    conversation = Conversation(settings={"top_k": 1})
    assert words in run(line, conversation)
    assert conversation == Conversation(settings={"top_k": 1})


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    conversation = Conversation(system="Be brief.", settings={"seed": 1})
    conversation.ask("Hi")
    conversation.answered("Hello\u2026")
    assert run(f"/save {file}", conversation) == f"saved 2 turns to {file}"
    assert json.loads(file.read_text())["turns"][1] == {"role": "assistant", "content": "Hello\u2026"}
    loaded = Conversation()
    run(f"/load {file}", loaded)
    assert loaded == conversation


def test_a_file_that_is_no_chat_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text in ('{"settings": {"temperature": 9}}', '{"colour": 1}', "no json"):
        file.write_text(text)
        assert run(f"/load {file}") != ""
        assert "loaded" not in run(f"/load {file}")


def test_clear_forgets_the_turns_and_keeps_the_rest() -> None:
    conversation = Conversation(system="s", turns=[ChatMessage(role="user", content="Hi")])
    run("/clear", conversation)
    assert conversation == Conversation(system="s")


def test_a_question_without_an_answer_is_taken_back() -> None:
    conversation = Conversation()
    conversation.ask("Hi")
    conversation.answered("")
    assert conversation.turns == []


def test_stats_before_any_answer_say_so() -> None:
    assert run("/stats") == "no answer yet"
    assert run_command("/stats", Conversation(), stats="7 tokens") == "7 tokens"
