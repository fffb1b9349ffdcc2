import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nothing here runs without the compiler that stands in for nvcc."""
    if shutil.which("g++") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="the emulator needs g++"))


@pytest.fixture(params=range(6))
def seed(request: pytest.FixtureRequest) -> int:
    """Every schedule with copies early and late."""
    value: int = request.param
    return value
