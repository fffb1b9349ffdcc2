"""Conversions happen once, whole or not at all, whoever is killed or arrives meanwhile."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda.models.folder import prepare_model
from cuda.models.gguf import cache as cache_module
from cuda.models.gguf import convert as gguf_convert
from cuda.models.spec import UnsupportedModel
from tests.cuda.models.tiny_gguf import tiny_gguf

Progress = Callable[[float], None]
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every folder that is converted into, in order."""
    seen: list[Path] = []

    def counting(gguf: Path, folder: Path, progress: Progress) -> None:
        seen.append(folder)
        real(gguf, folder, progress)

    real = gguf_convert.convert
    monkeypatch.setattr(gguf_convert, "convert", counting)
    return seen


def test_a_file_is_converted_once(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    path = str(tiny_gguf(tmp_path))
    fractions: list[float] = []
    folder = prepare_model(path, fractions.append)
    assert folder.parent == cache
    assert folder.name.startswith("llama-")
    assert {file.name for file in folder.iterdir()} == FILES
    assert fractions[-1] == 1.0
    assert prepare_model(path) == folder
    assert len(conversions) == 1


def test_a_changed_file_is_converted_anew(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    path = tiny_gguf(tmp_path)
    first = prepare_model(str(path))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    second = prepare_model(str(path))
    assert (first.parent, second.parent) == (cache, cache)
    assert first != second
    assert len(conversions) == 2


@pytest.mark.usefixtures("cache")
def test_a_new_converter_does_not_use_an_old_ones_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tiny_gguf(tmp_path))
    first = prepare_model(path)
    monkeypatch.setattr(cache_module, "CONVERTER_VERSION", cache_module.CONVERTER_VERSION + 1)
    assert prepare_model(path) != first


def test_a_failed_conversion_leaves_nothing_and_is_tried_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(tmp_path))

    def failing(_gguf: Path, folder: Path, _progress: Progress) -> None:
        (folder / "config.json").write_text("{", encoding="utf-8")
        raise OSError(28, "No space left on device", str(folder / "model.safetensors"))

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "convert", failing)
        with pytest.raises(
            UnsupportedModel, match=r"model\.safetensors: No space left on device\); point XDG_CACHE_HOME"
        ):
            prepare_model(path)
    assert [file.suffix for file in cache.iterdir()] == [".lock"]
    assert {file.name for file in prepare_model(path).iterdir()} == FILES


def test_an_unsupported_file_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UnsupportedModel, match="pre is 'strange'"):
        prepare_model(str(tiny_gguf(tmp_path, metadata={"tokenizer.ggml.pre": "strange"})))
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_without_the_gguf_package_the_message_says_how_to_get_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(tmp_path))
    for name in ("convert", "header"):
        monkeypatch.delitem(sys.modules, f"cuda.models.gguf.{name}")
    monkeypatch.setitem(sys.modules, "gguf", None)
    for name in [name for name in sys.modules if name.startswith("gguf.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnsupportedModel, match=r"package gguf.* is missing; run `pip install 'tokenstage\[gguf\]'`"):
        prepare_model(path)
    assert not list(cache.glob("*.partial-*"))


KILLED = """
import os, sys
from pathlib import Path
from cuda.models.gguf import convert as gguf_convert
from cuda.models.folder import prepare_model

real = gguf_convert.write_safetensors

def killed(gguf, header, spec, target, progress):
    real(gguf, header, spec, target, lambda fraction: os.kill(os.getpid(), 9) if fraction > 0.5 else None)

gguf_convert.write_safetensors = killed
prepare_model(sys.argv[1])
"""


def test_what_a_killed_conversion_left_is_never_used_and_swept(tmp_path: Path, cache: Path) -> None:
    path = str(tiny_gguf(tmp_path))
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False, cwd=Path(__file__).parents[4])
    assert killed.returncode == -9
    assert len(list(cache.glob("*.partial-*"))) == 1
    folder = prepare_model(path)
    assert {file.name for file in folder.iterdir()} == FILES
    assert not list(cache.glob("*.partial-*"))


def test_two_nodes_convert_a_file_only_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tiny_gguf(tmp_path))
    begun, go_on = threading.Event(), threading.Event()
    folders: list[Path] = []
    count = 0
    real = gguf_convert.convert

    def slow(gguf: Path, folder: Path, progress: Progress) -> None:
        nonlocal count
        count += 1
        begun.set()
        assert go_on.wait(60)
        real(gguf, folder, progress)

    monkeypatch.setattr(gguf_convert, "convert", slow)
    nodes = [threading.Thread(target=lambda: folders.append(prepare_model(path))) for _ in range(3)]
    nodes[0].start()
    assert begun.wait(60)
    nodes[1].start()
    nodes[2].start()
    assert not [folder for folder in cache.iterdir() if folder.is_dir() and ".partial-" not in folder.name]
    go_on.set()
    for node in nodes:
        node.join(60)
    assert count == 1
    assert len(folders) == 3
    assert len(set(folders)) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tiny_gguf(tmp_path))
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(UnsupportedModel, match=r"a file.*; point XDG_CACHE_HOME at a writable folder with room"):
        prepare_model(path)


def test_a_relative_cache_folder_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = prepare_model(str(tiny_gguf(tmp_path)))
    assert folder.parent == tmp_path / "home" / ".cache" / "tokenstage" / "models"


def test_having_no_home_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(UnsupportedModel, match="no home folder to convert a model into; set XDG_CACHE_HOME"):
        prepare_model(str(tiny_gguf(tmp_path)))


def test_names_with_odd_characters_are_converted(tmp_path: Path, cache: Path) -> None:
    odd = tmp_path / "mödel [v1] *.gguf"
    shutil.copyfile(tiny_gguf(tmp_path), odd)
    assert prepare_model(str(odd)).parent == cache
