import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from actors.runtime.log import configure_logging


@pytest.fixture(autouse=True)
def defaults_again() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_each_line_is_json_and_names_its_actor(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "worker:0")
    structlog.get_logger().info("loaded", num_pages=7)
    line = json.loads(capsys.readouterr().err)
    assert (line["actor"], line["event"], line["level"], line["num_pages"]) == ("worker:0", "loaded", "info", 7)


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "console", "node")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    text = capsys.readouterr().err
    assert "quiet" not in text
    assert "loud" in text


class Unbuffered(io.StringIO):
    """Standard error where Python was told not to buffer: other processes write between any two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


def test_a_line_and_its_end_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := Unbuffered())
    configure_logging("info", "json", "worker:0")
    structlog.get_logger().info("loaded")
    (line,) = file.writes
    assert line.endswith("}\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_on_a_terminal_wipes_the_progress_bar_that_stood_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    configure_logging("info", "console", "worker:0")
    structlog.get_logger().info("loaded")
    assert terminal.getvalue().startswith("\r\x1b[K")
    assert terminal.getvalue().count("\n") == 1


def test_an_exception_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "node")
    structlog.get_logger().error("failed", exc_info=ValueError("a reason"))
    assert "a reason" in json.loads(capsys.readouterr().err)["exception"]
