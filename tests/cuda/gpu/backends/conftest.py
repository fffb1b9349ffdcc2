from pathlib import Path

import pytest

from cuda.gpu.backends.nvrtc import Compiler, MissingPart, find_compiler


@pytest.fixture
def compiler() -> Compiler:
    try:
        return find_compiler()
    except MissingPart as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tokenstage" / "cubins"
