"""Devices tried out: what is measured is plausible, whoever fails says so, and nobody waits for one that has failed."""

import math
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cuda.check import timing
from cuda.check.trials import gpu as gpu_trial
from cuda.check.trials.cpu import measure_cpu
from cuda.check.trials.gpu import measure_backends
from cuda.check.trials.trial import Trial, fit_link, moved_bytes
from cuda.collectives.shared_memory import SharedMemory
from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.models.spec import UnsupportedModel
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.models.tiny import tiny_model

SHARED = Path("/dev/shm")  # noqa: S108 - where Linux keeps shared memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TRY_S", 0.01)
    monkeypatch.setattr(gpu_trial, "EXCHANGES", 4)
    monkeypatch.setattr(gpu_trial, "LARGE_BYTES", 1024)


def trial(folder: Path, **changed: Any) -> Trial:
    asked = Trial(
        kind="cpu", devices=(0, 1), folder=str(folder), dtype="auto", quantization="none", rows=8, hidden_size=64,
        sizes=(1, 2), values=(100_000, 50_000),
    )  # fmt: skip
    return msgspec.structs.replace(asked, **changed)


def test_a_link_is_the_line_through_two_exchanges() -> None:
    latency_s, bytes_per_s = fit_link((1000, 3e-6), (101_000, 103e-6))
    assert latency_s == pytest.approx(2e-6)
    assert bytes_per_s == pytest.approx(1e9)


def test_a_link_has_no_negative_latency_and_no_negative_speed() -> None:
    assert fit_link((1000, 1e-6), (2000, 3e-6))[0] == 0
    assert fit_link((1000, 3e-6), (2000, 2e-6)) == (3e-6, math.inf)


@pytest.mark.parametrize(("size", "moved"), [(1, 0), (2, 1000), (4, 1500)])
def test_an_all_reduce_moves_what_a_ring_does(size: int, moved: float) -> None:
    assert moved_bytes(size, 1000) == moved


@pytest.mark.parametrize(("num_devices", "sizes"), [(2, (1, 2)), (3, (1, 3)), (4, (2, 4))])
def test_cpu_devices_are_timed_in_groups_of_each_size(folder: Path, num_devices: int, sizes: tuple[int, ...]) -> None:
    asked = trial(folder, devices=tuple(range(num_devices)), sizes=sizes)
    result = measure_cpu(asked)
    assert [pace.size for pace in result.paces] == list(sizes)
    for pace in result.paces:
        assert 1e-13 < pace.value_s < 1e-4
        assert (pace.latency_s > 0) == (pace.size > 1)
        assert pace.link_bytes_per_s > 1e6
    assert result.item_bytes == 4
    assert result.free_bytes > 0


@pytest.mark.parametrize("changed", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_weights_are_kept_as_they_will_be(folder: Path, changed: dict[str, str]) -> None:
    result = measure_cpu(trial(folder, sizes=(1,), values=(1,), **changed))
    assert result.item_bytes == (2 if "dtype" in changed else 4)


def test_ranks_keep_to_their_cores_and_others_do_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _thread, cores: pinned.append(tuple(cores)))
    measure_cpu(trial(folder, cores=((5,), (7,)), sizes=(1,), values=(1,)))
    assert pinned == []
    measure_cpu(trial(folder, cores=((5,), (7,))))
    assert sorted(pinned) == [(5,), (7,)]


def test_when_one_device_fails_none_waits_for_it_and_its_error_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(SHARED.iterdir())
    open_peers, opened = SharedMemory.open_peers, threading.Event()

    def one_cannot(memory: SharedMemory, handles: list[bytes]) -> tuple[int, ...]:
        if memory.export() == handles[1]:
            opened.wait(10)  # else the other would find its memory gone, and that might be told first
            raise OSError("no room")
        addresses = open_peers(memory, handles)
        opened.set()
        return addresses

    monkeypatch.setattr(SharedMemory, "open_peers", one_cannot)
    with pytest.raises(OSError, match="no room"):
        measure_cpu(trial(folder))
    assert set(SHARED.iterdir()) <= before


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no tensor"):
        measure_cpu(trial(tmp_path))


class Apart(EmulatedBackend):
    """A device that cannot address the memory of others."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sharing.reach = self._reach  # type: ignore[method-assign]  # for this test

    def _reach(self, index: int) -> None:
        if index != self.index:
            raise RuntimeError(f"GPU {self.index} cannot address the memory of GPU {index}")


@needs_compiler
def test_backends_are_timed_and_their_memory_is_given_back(folder: Path) -> None:
    before = set(SHARED.iterdir())
    backends = [EmulatedBackend(Settings(device=index)) for index in range(2)]
    result = measure_backends(trial(folder, kind="cuda"), backends, working_set=1)
    one, two = result.paces
    assert one.value_s == two.value_s > 0
    assert (one.latency_s, two.hindrance) == (0, "")
    assert two.latency_s > 0
    assert two.link_bytes_per_s > 0
    assert result.item_bytes == 4
    assert set(SHARED.iterdir()) <= before


@needs_compiler
def test_devices_that_cannot_reach_each_other_can_only_be_replicas(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_trial, "PEER_TIMEOUT_S", 0.2)
    before = set(SHARED.iterdir())
    backends = [*(EmulatedBackend(Settings(device=index)) for index in range(3)), Apart(Settings(device=3))]
    asked = trial(folder, kind="cuda", devices=(0, 1, 2, 3), sizes=(1, 2, 4), values=(1, 1, 1))
    one, two, four = measure_backends(asked, backends, working_set=1).paces
    assert one.hindrance == ""
    assert two.hindrance == "rank 1 cannot open the memory of rank 0: GPU 3 cannot address the memory of GPU 2"
    assert four.hindrance == two.hindrance
    assert set(SHARED.iterdir()) <= before


@needs_compiler
def test_a_model_that_cannot_be_exchanged_so_is_no_failure(folder: Path) -> None:
    backends = [EmulatedBackend(Settings(device=index)) for index in range(2)]
    one, two = measure_backends(trial(folder, kind="cuda", hidden_size=63), backends, working_set=1).paces
    assert one.hindrance == ""
    assert "63" in two.hindrance
