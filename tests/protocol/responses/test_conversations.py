"""How long a connection remembers its conversations."""

import pytest

from protocol.responses.conversations import MAX_KEPT, Conversations
from protocol.wire import ChatMessage


def turns(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(role="user", content=text),)


def test_what_is_remembered_can_be_recalled_often() -> None:
    kept = Conversations()
    kept.remember("a", turns("x"))
    assert kept.recall("a") == kept.recall("a") == turns("x")
    assert kept.recall("b") is None


def test_the_least_recently_used_go_first() -> None:
    kept = Conversations()
    for number in range(MAX_KEPT):
        kept.remember(str(number), turns("x"))
    kept.recall("0")
    kept.remember("new", turns("x"))
    assert kept.recall("1") is None
    assert kept.recall("0") == turns("x")


def test_text_is_bounded_and_the_youngest_is_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.responses.conversations.MAX_CHARACTERS", 10)
    kept = Conversations()
    kept.remember("a", turns("x" * 6))
    kept.remember("b", turns("x" * 6))
    assert kept.recall("a") is None
    kept.remember("c", turns("x" * 100))
    assert kept.recall("b") is None
    assert kept.recall("c") == turns("x" * 100)
    kept.remember("d", turns("x"))
    assert kept.recall("c") is None
    assert kept.recall("d") == turns("x")
