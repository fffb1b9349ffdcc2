import os
from pathlib import Path

import pytest

from actors.cores import usable_cores

ALL = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", ALL), ("50000 100000", 1), ("100000 100000", 1), ("99900000 100000", ALL), ("", ALL)],
)
def test_a_containers_quota_bounds_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert usable_cores(file) == cores


def test_without_a_quota_file_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == ALL
