"""The compiler of a first start: one process at most, gone with the block; the cache's lock lets others wait."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from actors.node import first_start
from actors.node.first_start import KernelCompiler


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "compile" in " ".join(child.cmdline())]


def test_nothing_runs_until_it_is_started() -> None:
    with KernelCompiler():
        assert children() == []


def test_it_runs_once_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_start, "COMMAND", "compile = input")  # any program; this one is over at once
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
