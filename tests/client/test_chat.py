import json
from pathlib import Path

import pytest

from client import Result
from client.chat import AnswerStats, Conversation, run_command
from protocol.messages import Timing, Usage
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


def test_all_figures_are_shown_after_an_answer_that_ended() -> None:
    result = Result(
        request_id="1",
        num_tokens=11,
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, cached_tokens=3, completion_tokens=11),
        timing=Timing(queue_ms=1.0, ttft_ms=20.0, tpot_ms=10.0, total_ms=120.0),
    )
    shown = AnswerStats(result=result, ttft_s=0.5, total_s=1.5).full().splitlines()
    assert shown[0] == "11 tokens · 10.0 tok/s · TTFT 500 ms"
    assert shown[1] == "prompt    5 tokens, 3 of them from the prefix cache"
    assert shown[3] == "server    TTFT 20.0 ms, TPOT 10.0 ms, total 120.0 ms"


def test_a_broken_off_answer_shows_no_figure_that_the_server_never_told() -> None:
    stats = AnswerStats(result=Result(request_id="1", num_tokens=3, finish_reason="cancelled"), ttft_s=0.5, total_s=1.5)
    assert stats.full() == stats.footer() == "3 tokens · 2.0 tok/s · TTFT 500 ms · cancelled"
