import os
from pathlib import Path

import pytest

from actors.node.cores import core_shares, usable_cores

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


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: dict[int, tuple[int, int]]) -> Path:
    """A folder like the kernel's: logical CPU -> (socket, core); all of them may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(places))
    for cpu, (socket, core) in places.items():
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket}\n")
        (topology / "core_id").write_text(f"{core}\n")
    return tmp_path


def test_hardware_threads_of_a_core_are_in_one_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = machine(tmp_path, monkeypatch, {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)})
    assert core_shares(2, tmp_path / "none", cpus) == [(0, 2), (1, 3)]


def test_cores_of_a_socket_are_in_one_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = machine(tmp_path, monkeypatch, {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)})
    assert core_shares(2, tmp_path / "none", cpus) == [(0, 2), (1, 3)]


def test_shares_are_equal_and_a_core_left_over_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7, 8, 9})
    assert core_shares(2, tmp_path / "none", tmp_path) == [(3, 5), (7, 8)]


@pytest.mark.parametrize(("num_shares", "quota"), [(5, "max 100000"), (2, "300000 100000")])
def test_nobody_keeps_to_cores_where_there_are_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shares: int, quota: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(quota)
    assert core_shares(num_shares, tmp_path / "cpu.max", tmp_path) == [()] * num_shares
