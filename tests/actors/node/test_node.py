"""The node as a process: how it starts, what it leaves behind, how it ends. Draining is in tests/end_to_end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

QUICK = ("--port", "0", "--devices", "counting")
TIMEOUT_S = 60.0


@contextmanager
def node(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A node whose temporary files are below `folder`; its output lines can be read as they come."""
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "actors.node", *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def run_node(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actors.node", *flags],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )


def facts_of(ready_file: Path) -> Any:
    return json.loads(ready_file.read_text())


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--devics", "cpu"], "--devics"),
        (["--devices", "cuda:0"], "--devices"),
        (["--devices", ",".join(f"cpu:{index}" for index in range(10)), "--tp", "10"], "--tp"),
        (["--model", "/no/such/model"], "--model"),
        (["--host", "no.such.host.invalid", "--insecure"], "--host"),
        (["--max-model-len", "1"], "--max-model-len"),
        (["--kv-memory", "1"], "--kv-memory"),
        (["--kv-memory", "500TiB"], "--kv-memory"),
        (["--num-pages", "2000000000"], "--num-pages"),
    ],
)
def test_a_setting_that_cannot_be_ends_it_with_2_and_one_line(flags: list[str], name: str) -> None:
    ended = run_node(*flags)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"tokenstage: {name}: ")
    assert ended.stderr.count("\n") == 1


def test_a_port_in_use_ends_it_with_2_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_node("--port", str(taken.getsockname()[1]), "--devices", "counting")
    assert ended.returncode == 2
    assert "in use" in ended.stderr


def test_the_resolved_configuration_can_be_printed() -> None:
    ended = run_node("--print-config", "--page-size", "32", TOKENSTAGE_MAX_RUNNING="5", TOKENSTAGE_API_KEY="hush")
    assert ended.returncode == 0
    settings = json.loads(ended.stdout)
    assert (settings["page_size"], settings["max_running"]) == (32, 5)
    assert "hush" not in ended.stdout


def test_the_sizes_of_groups_can_be_printed() -> None:
    ended = run_node("--print-plan", "--devices", "cpu:0,cpu:1")
    assert ended.returncode == 0
    head, one, two, last = ended.stdout.splitlines()
    assert "step ms" in head
    chosen = one if one.startswith("*") else two
    assert last.startswith(f"tp {chosen.split()[1]}: its step of 8 rows is predicted to take ")


def test_when_ready_it_says_where_and_who(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    with node(tmp_path, *QUICK, "--served-model-name", "mine", "--ready-file", str(ready_file)) as process:
        line = ready_line(process)
        facts = facts_of(ready_file)
        assert line == f"tokenstage ready on {facts['url']} (model mine, devices counting:0)\n"
        assert facts["pid"] == process.pid
        assert set(facts["actors"]) == {"scheduler", "ingress", "worker:0"}
        parents = {psutil.Process(pid).ppid() for pid in facts["actors"].values()}
        assert parents == {process.pid}


@pytest.mark.parametrize("handed", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_node_ends_with_0_and_leaves_nothing_behind(tmp_path: Path, handed: signal.Signals) -> None:
    ready_file = tmp_path / "ready.json"
    with node(tmp_path, *QUICK, "--ready-file", str(ready_file)) as process:
        ready_line(process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        run_dirs = list(tmp_path.glob("tokenstage-*"))
        assert [run_dir.stat().st_mode & 0o777 for run_dir in run_dirs] == [0o700]
        process.send_signal(handed)
        assert process.wait(TIMEOUT_S) == 0
        assert not any(child.is_running() for child in children)
    assert [path.name for path in tmp_path.iterdir()] == ["stderr"]


def test_children_leave_the_signals_of_a_terminal_to_the_node(tmp_path: Path) -> None:
    with node(tmp_path, *QUICK) as process:
        ready_line(process)
        children = psutil.Process(process.pid).children()
        for child in children:
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0  # 1 would mean that a child had died of its signal


def test_a_signal_while_it_loads_ends_it(tmp_path: Path) -> None:
    with node(tmp_path, "--port", "0", "--devices", "cpu", "--num-pages", "64") as process:
        parent = psutil.Process(process.pid)
        while len(parent.children()) < 3:
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_a_device_that_cannot_load_ends_it_with_1(tmp_path: Path) -> None:
    with node(tmp_path, *QUICK, "--kv-memory", "1") as process:
        assert process.wait(TIMEOUT_S) == 1
        assert ready_line(process) == ""
    assert "worker:0" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("actor", ["scheduler", "ingress", "worker:0"])
def test_a_killed_actor_ends_an_idle_node_with_1(tmp_path: Path, actor: str) -> None:
    ready_file = tmp_path / "ready.json"
    with node(tmp_path, *QUICK, "--ready-file", str(ready_file)) as process:
        ready_line(process)
        children = psutil.Process(process.pid).children()
        os.kill(facts_of(ready_file)["actors"][actor], signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
        assert not any(child.is_running() for child in children)
    assert f"{actor} was ended by SIGKILL" in (tmp_path / "stderr").read_text()


def test_children_die_with_a_killed_node(tmp_path: Path) -> None:
    with node(tmp_path, *QUICK) as process:
        ready_line(process)
        children = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(children, 10)
        assert not alive


def test_two_replicas_are_two_workers(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    flags = ("--port", "0", "--topology", "mixed=counting:0;mixed=counting:1", "--ready-file", str(ready_file))
    with node(tmp_path, *flags) as process:
        assert "devices counting:0,counting:1" in ready_line(process)
        assert {"worker:0", "worker:1"} <= set(facts_of(ready_file)["actors"])


def test_a_node_that_ends_leaves_the_ready_file_of_another(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    flags = (*QUICK, "--ready-file", str(ready_file))
    with node(tmp_path, *flags) as earlier:
        ready_line(earlier)
        with node(tmp_path, *flags) as later:
            ready_line(later)
            earlier.send_signal(signal.SIGTERM)
            assert earlier.wait(TIMEOUT_S) == 0
            assert facts_of(ready_file)["pid"] == later.pid


def test_a_worker_that_is_stopped_makes_the_node_unhealthy(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    with node(tmp_path, *QUICK, "--ready-file", str(ready_file)) as process:
        ready_line(process)
        facts = facts_of(ready_file)
        health = facts["url"].replace("ws", "http", 1) + "/health"
        assert http_status(health) == 200
        worker = psutil.Process(facts["actors"]["worker:0"])
        worker.suspend()
        assert http_status(health) == 503
        worker.resume()
        assert http_status(health) == 200


def http_status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - our own http
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
