import asyncio
import io
import json
import os
import pty
import signal
import sys
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from client.__main__ import _parser, _run, main
from client.errors import APIConnectionError, BadRequestError, InternalServerError
from protocol.wire import Cancel, Failed, Generate
from tests.client.fake_server import FakeServer, Peer, finished, tokens

MODELS = {"/v1/models": b'{"object": "list", "data": [{"id": "demo", "max_model_len": 2048}]}', "/readyz": b"{}"}


async def run(*arguments: str) -> int:
    return await _run(_parser().parse_args(arguments))


async def answer(peer: Peer) -> None:
    """Answers with the last user text, reversed, token by token."""
    while True:
        generate = await peer.accept()
        text = (generate.messages[-1].content if generate.messages else generate.prompt or "")[::-1]
        await peer.send(*(tokens(generate, index, letter) for index, letter in enumerate(text)))
        await peer.send(finished(generate, len(text)))


async def answer_tokens(peer: Peer) -> None:
    """Sends exactly max_tokens tokens, two a frame where it can."""
    while True:
        generate = await peer.accept()
        most = generate.max_tokens or 0
        for index in range(0, most, 2):
            await peer.send(tokens(generate, index, *("x" * min(2, most - index))))
        await peer.send(finished(generate, most, "length"))


async def test_generate_streams_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeServer(answer, pages=MODELS) as server:
        assert await run("generate", "abc", "--url", server.url, "--temperature", "0") == 0
    assert capsys.readouterr().out == "cba\n"


async def test_an_answer_that_breaks_off_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def break_off(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "c"), Failed(id=generate.id, code="internal", message="worker 0 died"))
        await peer.until_closed()

    async with FakeServer(break_off, pages=MODELS) as server:
        with pytest.raises(InternalServerError, match="worker 0 died"):
            await run("generate", "abc", "--url", server.url)
    assert capsys.readouterr().out == "c\n"


async def test_generate_prints_the_whole_result_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeServer(answer, pages=MODELS) as server:
        await run("generate", "abc", "--url", server.url, "--json", "--chat")
    result = json.loads(capsys.readouterr().out)
    assert (result["text"], result["finish_reason"], result["tokens"]) == ("cba", "stop", [100, 101, 102])


async def test_generate_reads_a_piped_prompt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("xyz"))
    async with FakeServer(answer, pages=MODELS) as server:
        await run("generate", "-", "--url", server.url)
    assert capsys.readouterr().out == "zyx\n"


async def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeServer(answer, pages=MODELS) as server:
        assert await run("models", "--url", server.url) == 0
    assert capsys.readouterr().out == "demo\tmax_model_len 2048\n"


async def test_chat_with_piped_input_is_one_shot_without_escape_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("line one\nline two\n"))
    async with FakeServer(answer, pages=MODELS) as server:
        assert await run("chat", "--url", server.url) == 0
    captured = capsys.readouterr()
    assert captured.out == "line one\nline two"[::-1] + "\n"
    assert captured.err == ""


async def test_chat_waits_for_a_server_that_is_loading_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab"))
    server = FakeServer(answer, pages=MODELS)
    server.statuses["/readyz"] = [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.OK]
    async with server:
        assert await run("chat", "--url", server.url) == 0
    captured = capsys.readouterr()
    assert captured.out == "ba\n"
    assert captured.err.startswith("the server is loading its model; waiting")
    assert captured.err.count("\n") == 1


async def test_a_server_that_never_loads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab"))
    server = FakeServer(answer)
    server.statuses["/readyz"] = [HTTPStatus.SERVICE_UNAVAILABLE]
    async with server:
        with pytest.raises(APIConnectionError, match="the server is loading its model"):
            await run("chat", "--url", server.url, "--wait", "0")


async def test_an_empty_pipe_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    async with FakeServer(answer, pages=MODELS) as server:
        with pytest.raises(BadRequestError, match="nothing to ask"):
            await run("chat", "--url", server.url)


def test_nobody_listening_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--url", "ws://127.0.0.1:1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: http://127.0.0.1:1/v1/models: cannot read")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "x", "--temperature", "7"],
        ["models", "--url", "nonsense"],
        ["bench", "--dataset", "trace", "x.jsonl"],
        ["bench", "--goodput", "speed:1"],
        ["bench", "--request-rate", "0"],
        ["bench", "--num-requests", "0"],
    ],
)
def test_a_usage_mistake_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [[], ["dance"], ["generate"], ["models", "--colour"], ["chat", "--top-p", "x"]])
def test_a_flag_that_cannot_be_is_one_line_that_leads_to_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.endswith(" --help\n")
    assert captured.err.count("\n") == 1


async def test_a_failed_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(peer: Peer) -> None:
        generate = await peer.expect(Generate)
        await peer.send(Failed(id=generate.id, code="internal", message="worker 0 died"))
        await peer.until_closed()

    monkeypatch.setattr(sys, "stdin", io.StringIO("ab"))
    async with FakeServer(fail, pages=MODELS) as server:
        with pytest.raises(InternalServerError, match="worker 0 died"):
            await run("chat", "--url", server.url)


async def test_bench_counts_what_was_asked_and_saves_what_it_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    flags = "--num-requests 12 --input-len 5 --output-len 7 --max-concurrency 3 --goodput ttft:60000 tpot:60000".split()
    async with FakeServer(answer_tokens, pages=MODELS) as server:
        assert await run("bench", "--url", server.url, *flags, "--save", str(file)) == 0
    figures = json.loads(file.read_text())
    assert (figures["completed"], figures["failed"], figures["num_prompts"]) == (12, 0, 12)
    assert (figures["total_output_tokens"], figures["total_input_tokens"]) == (84, 36)
    assert (figures["goodput_ratio"], figures["model_id"], figures["max_concurrency"]) == (1.0, "demo", 3)
    printed = capsys.readouterr().out
    assert "Successful requests:                     12" in printed
    assert f"Mean TTFT (ms):                          {figures['mean_ttft_ms']:.2f}" in printed


async def test_bench_reports_refusals_and_does_not_retry_them(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(peer: Peer) -> None:
        while True:
            generate = await peer.expect(Generate)
            await peer.send(Failed(id=generate.id, code="overloaded", message="full", retry_after_ms=1))

    async with FakeServer(refuse, pages=MODELS) as server:
        assert await run("bench", "--url", server.url, "--num-requests", "3") == 0
    captured = capsys.readouterr()
    assert "Refused requests:                        3" in captured.out
    assert captured.err == "3 x overloaded: full\n"


async def test_bench_reads_prompts_of_a_file(tmp_path: Path) -> None:
    seen = []

    async def note(peer: Peer) -> None:
        while True:
            seen.append(generate := await peer.accept())
            await peer.send(tokens(generate, 0, "x"), finished(generate, 1, "length"))

    file = tmp_path / "prompts.json"
    file.write_text('[{"prompt_tokens": [5, 6], "max_tokens": 1}, {"prompt_tokens": [7], "max_tokens": 1}]')
    async with FakeServer(note, pages=MODELS) as server:
        assert await run("bench", "--url", server.url, "--dataset", "file", str(file)) == 0
    assert [generate.prompt_tokens for generate in seen] == [[5, 6], [7]]
    assert {(generate.temperature, generate.ignore_eos, generate.return_tokens) for generate in seen} == {
        (0, True, False)
    }


async def test_ctrl_c_stops_the_answer_and_keeps_the_session(tmp_path: Path) -> None:
    async def endless_then_short(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "endless"))
        await peer.expect(Cancel)
        await peer.send(finished(generate, 1, "cancelled"))
        generate = await peer.accept()
        assert [turn.content for turn in generate.messages or []] == ["first", "endless", "second"]
        await peer.send(tokens(generate, 0, "done"), finished(generate, 1))
        await peer.until_closed()

    async with FakeServer(endless_then_short, pages=MODELS) as server, Terminal() as terminal:
        chat = await terminal.start("chat", "--url", server.url, state_folder=tmp_path)
        await terminal.shows(">>>")
        terminal.types("first\r")
        await terminal.shows("endless")
        chat.send_signal(signal.SIGINT)
        await terminal.shows("1 tokens")
        await terminal.shows(">>>")
        terminal.types("second\r")
        await terminal.shows("done")
        await terminal.shows(">>>")
        terminal.types("/bye\r")
        assert await chat.wait() == 0
    assert "first" in (tmp_path / "tokenstage" / "chat_history").read_text()


async def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(tmp_path: Path) -> None:
    async def slow_then_short(peer: Peer) -> None:
        generate = await peer.accept()
        await peer.send(tokens(generate, 0, "begun"))
        await has_typed.wait()
        await peer.send(tokens(generate, 1, "ended"), finished(generate, 2))
        generate = await peer.accept()
        assert [turn.content for turn in generate.messages or []] == ["first", "begunended", "second"]
        await peer.send(tokens(generate, 0, "done"), finished(generate, 1))
        await peer.until_closed()

    has_typed = asyncio.Event()
    async with FakeServer(slow_then_short, pages=MODELS) as server, Terminal() as terminal:
        chat = await terminal.start("chat", "--url", server.url, state_folder=tmp_path)
        await terminal.shows(">>>")
        terminal.types("first\r")
        await terminal.shows("begun")
        terminal.types("second\r")
        has_typed.set()
        assert await terminal.shows("ended") == ""
        await terminal.shows(">>>")
        await terminal.shows("done")
        await terminal.shows(">>>")
        terminal.types("/bye\r")
        assert await chat.wait() == 0


class Terminal:
    """A pseudo-terminal, what has been written to it, and the program on it, which ends with it."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        self._text = ""
        self._changed = asyncio.Event()
        self._program: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._program is not None and self._program.returncode is None:
            self._program.kill()
            await self._program.wait()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)

    async def start(self, *arguments: str, state_folder: Path) -> asyncio.subprocess.Process:
        self._program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "client", *arguments),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "XDG_STATE_HOME": str(state_folder), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        return self._program

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def shows(self, text: str) -> str:
        """Wait until `text` has been written after what was last waited for; returns what came before it."""
        while text not in self._text:
            self._changed.clear()
            await self._changed.wait()
        before, _, self._text = self._text.partition(text)
        return before

    def _read(self) -> None:
        self._text += os.read(self._ours, 65536).decode(errors="replace")
        self._changed.set()
