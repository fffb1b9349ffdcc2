"""These tests run on a GPU: elsewhere each is skipped, with the reason."""

from pathlib import Path

import pytest

from cuda.backends.errors import MissingPart
from cuda.backends.gpu import check_gpu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    missing = _what_is_missing() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=missing))


def _what_is_missing() -> str | None:
    try:
        check_gpu(0)
    except MissingPart as missing:
        return str(missing)
    return None
