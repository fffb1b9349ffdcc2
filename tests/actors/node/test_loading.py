import io
import sys

import pytest

from actors.node.startup import LoadingDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_all_parts_share_one_bar_which_shows_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with LoadingDisplay("loading") as display:
        display.show("worker:0", 0.9)
        display.show("worker:1", 0.25)
    last = terminal.getvalue().rpartition("loading")[2]
    assert "25%" in last
    assert "worker" not in terminal.getvalue()


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadingDisplay("loading") as display:
        display.show("worker:0", 0.5)
    assert capsys.readouterr() == ("", "")
