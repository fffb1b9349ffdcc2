from pathlib import Path

import pytest

FIELDS = "Computes Owns Traffic Bound Numerics Requires".split()
FOLDER = Path(__file__).parents[3] / "cuda" / "kernels"
SOURCES = sorted(FOLDER.glob("*.cu"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_kernel_opens_with_its_six_fields_in_order(source: Path) -> None:
    lines = source.read_text().splitlines()
    header = lines[: next(number for number, line in enumerate(lines) if not line.startswith("//"))]
    assert [line.split()[1] for line in header if len(line) > 3 and line[3] != " "] == FIELDS


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.cu*")), ids=lambda path: path.name)
def test_every_barrier_names_the_race_it_prevents(source: Path) -> None:
    for line in source.read_text().splitlines():
        if "__syncthreads()" in line or "__syncwarp(" in line:
            assert "//" in line
