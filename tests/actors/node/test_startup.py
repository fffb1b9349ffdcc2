"""Run directories: private, gone when their node ends, cleared by a later node when it was killed."""

import os
import tempfile
from pathlib import Path

import pytest

from actors.node.run_folder import PREFIX, SETTLED_S, run_folder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("actors.node.run_folder.MAX_TEMP_PATH", 1000)  # no socket is made here
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
