import shutil

import pytest

if shutil.which("g++") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(params=range(6))
def seed(request: pytest.FixtureRequest) -> int:
    """Every schedule with copies early and late."""
    value: int = request.param
    return value
