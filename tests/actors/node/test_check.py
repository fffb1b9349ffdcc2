"""`--check`: what it prints and what it returns, for devices in order and for those that fail in every way."""

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from actors.node import check as module
from actors.node.check import check
from cuda.check.findings import Begun, Finding
from cuda.check.peers.proof import Link


def checked(devices: list[str]) -> tuple[int, str]:
    output = io.StringIO()
    code = check(devices, Console(file=output, width=200))
    return code, output.getvalue()


def in_order(report: Callable[[Any], None], _device: str) -> None:
    report(Begun("a kernel"))
    report(Finding("a kernel", "ok", "equal"))


def wrong(report: Callable[[Any], None], _device: str) -> None:
    report(Finding("a kernel", "FAILED", "error [/red] of the tolerance"))


def crashing(report: Callable[[Any], None], _device: str) -> None:
    report(Begun("a kernel"))
    os.abort()


def hanging(report: Callable[[Any], None], _device: str) -> None:
    report(Begun("a kernel"))
    threading.Event().wait()


@pytest.fixture(autouse=True)
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove", lambda _devices: [])
    monkeypatch.setattr(module, "prove_sum", lambda _devices: None)


def test_a_device_in_order_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_check_device", in_order)
    code, shown = checked(["cpu:0", "cpu:1"])
    assert code == 0
    assert shown.count("a kernel") == 1  # both are the same processor
    assert "everything is in order" in shown


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (wrong, "FAILED cpu: a kernel: error [/red] of the tolerance"),
        (crashing, "FAILED cpu: a kernel: its process was killed by SIGABRT"),
    ],
)
def test_a_device_that_fails_ends_with_1_and_says_at_what(
    work: Callable[..., None], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_check_device", work)
    code, shown = checked(["cpu:0"])
    assert code == 1
    assert line in shown.splitlines()


def test_a_device_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_check_device", hanging)
    monkeypatch.setattr(module, "SILENCE_S", 2.0)
    code, shown = checked(["cpu:0"])
    assert code == 1
    assert re.search("FAILED cpu: (start|a kernel): nothing was heard of it for 2 s", shown)


def test_a_gpu_that_is_not_there_is_said_with_what_to_do() -> None:
    code, shown = checked(["cuda:77"])
    assert code == 1
    assert "FAILED cuda:77: device: cuda:77 cannot be used: " in shown


def test_pairs_of_a_kind_are_proven_and_printed_as_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    proven = []

    def prove(devices: list[str]) -> list[Link]:
        proven.append(devices)
        there, back = devices
        return [Link(there, back, "ok", "", 2.5e9, 3e-6), Link(back, there, "lost writes", "8 bytes did not arrive")]

    monkeypatch.setattr(module, "prove", prove)
    monkeypatch.setattr(module, "_check_device", in_order)
    code, shown = checked(["cpu:0", "counting:0", "cpu:1"])
    assert proven == [["cpu:0", "cpu:1"]]
    assert code == 1
    assert "2.5 GB/s 3.0 us" in shown
    assert "FAILED cpu:1 to cpu:0: lost writes (8 bytes did not arrive): shared memory" in shown


@pytest.mark.parametrize(("wrong", "code"), [(None, 0), ("the all-reduce gives 3 wrong sums", 1)])
def test_devices_that_reach_each_other_add_up(wrong: str | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove_sum", lambda _devices: wrong)
    monkeypatch.setattr(module, "_check_device", in_order)
    found, shown = checked(["cpu:0", "cpu:1"])
    assert found == code
    assert "all-reduce of cpu:0,cpu:1" in shown
    assert ("gives 3 wrong sums" in shown) == (wrong is not None)


def test_the_node_checks_this_machines_processor() -> None:
    command = [sys.executable, "-m", "actors.node", "--check", "--devices", "cpu:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "attention bfloat16" in done.stdout
    assert "copy bandwidth" in done.stdout
    assert "FAILED" not in done.stdout
    assert "\x1b" not in done.stdout
