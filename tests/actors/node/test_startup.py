"""What a start makes and shows.

Run directories: private, gone when their node ends, cleared by a later node when it was killed. The compiler of a first
start: one process at most, gone with the block; the cache's lock lets others wait. Progress: a bar on a terminal only.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from actors.node import startup
from actors.node.startup import PREFIX, SETTLED_S, KernelCompiler, LoadingDisplay, run_folder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("actors.node.startup.MAX_TEMP_PATH", 1000)  # no socket is made here
    return tmp_path


def age(folder: Path) -> None:
    then = folder.stat().st_mtime - 2 * SETTLED_S
    os.utime(folder, (then, then))


def test_a_folder_is_private_and_gone_afterwards(parent: Path) -> None:
    with run_folder() as folder:
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_what_a_killed_node_has_left_is_cleared(parent: Path) -> None:
    left = parent / f"{PREFIX}left"
    left.mkdir()
    (left / "scheduler.sock").touch()
    age(left)
    with run_folder():
        assert not left.exists()


def test_a_folder_that_a_living_node_has_is_kept() -> None:
    with run_folder() as earlier:
        age(earlier)
        with run_folder():
            assert earlier.exists()


def test_a_folder_that_has_just_been_made_is_kept(parent: Path) -> None:
    fresh = parent / f"{PREFIX}fresh"
    fresh.mkdir()
    with run_folder():
        assert fresh.exists()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "compile" in " ".join(child.cmdline())]


def test_nothing_runs_until_it_is_started() -> None:
    with KernelCompiler():
        assert children() == []


def test_it_runs_once_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "COMPILE", "compile = input")  # any program; this one is over at once
    with KernelCompiler() as compiler:
        compiler.start()
        first = children()
        compiler.start()
        assert len(first) == 1
        assert children() == first
    assert children() == []


def test_two_compilers_take_turns(tmp_path: Path) -> None:
    program = (
        "import fcntl\n"
        "from pathlib import Path\n"
        "from numba.core import config\n"
        "from cuda.cpu.kernels.jit import one_compiler\n"
        "with one_compiler():\n"
        "    other = (Path(config.CACHE_DIR) / 'lock').open('w')\n"
        "    try:\n"
        "        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except BlockingIOError:\n"
        "        print('held')\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert found.stdout.split() == [b"held"]


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
