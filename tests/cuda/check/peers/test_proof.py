"""Peer-to-peer between processes that are in order, and beside one whose fabric, driver or device fails."""

import re
from dataclasses import replace

import pytest

from cuda.check.peers.proof import Link, prove, prove_sum, verdict
from tests.cuda.check.peers.faulty_ends import serve_fault
from tests.cuda.kernels.combinations import needs_compiler


def test_devices_in_order_are_fit_in_both_directions() -> None:
    links = prove(["cpu:0", "cpu:1"])
    assert [(link.source, link.target, link.fitness) for link in links] == [
        ("cpu:0", "cpu:1", "ok"),
        ("cpu:1", "cpu:0", "ok"),
    ]
    assert verdict(links) is None
    for link in links:
        assert link.bandwidth > 1e8
        assert 0 < link.latency_s < 0.01
        assert re.fullmatch(r"cpu:\d to cpu:\d: [\d.]+ GB/s, a small write [\d.]+ us", link.line)


@needs_compiler
def test_kernels_of_emulated_devices_reach_each_others_memory() -> None:
    links = prove(["emu:0", "emu:1"])
    assert [link.fitness for link in links] == ["ok", "ok"]


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:1"], pytest.param(["emu:0", "emu:1"], marks=needs_compiler)])
def test_devices_in_order_add_up(devices: list[str]) -> None:
    assert prove_sum(devices) is None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("SumsWrong", "gives 7 wrong sums, falling back"),
        ("SumsLate", "hang (SumsLate did not answer within 2 s), falling back"),
        ("SumsFail", "failed (rank 0 waited 1 s for rank 1), falling back"),
    ],
)
def test_sums_that_are_wrong_late_or_fail_are_said(fault: str, said: str) -> None:
    line = prove_sum(["cpu:1", fault], serve=serve_fault, answer_s=2 if fault == "SumsLate" else 30)
    assert line is not None
    assert line.startswith(f"the all-reduce of cpu:1,{fault}")
    assert line.endswith(said)


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("Loses", "lost writes", "8388608 bytes did not arrive"),
        ("ReadsStale", "lost writes", "4096 bytes that did arrive are read back wrong"),
        ("Refuses", "refused mapping", "peer access is not supported"),
        ("Hangs", "hang", "Hangs did not answer within 2 s"),
        ("Dies", "failed", "the process of Dies ended with 3"),
    ],
)
def test_a_fault_of_one_direction_is_named_and_the_other_is_proven(fault: str, outcome: str, detail: str) -> None:
    there, back = prove([fault, "cpu:1"], serve=serve_fault, answer_s=2 if fault == "Hangs" else 30)
    assert (there.fitness, there.detail) == (outcome, detail)
    assert back.fitness == "ok"
    line = verdict([there, back])
    assert line is not None
    assert line.startswith(f"peer-to-peer is unfit, falling back: {fault} to cpu:1: {outcome} ({detail}): ")
    assert "\n" not in line


def test_a_device_that_cannot_start_fails_in_both_directions() -> None:
    links = prove(["NeverStarts", "cpu:1"], serve=serve_fault)
    assert [(link.fitness, link.detail) for link in links] == [("failed", "no such device")] * 2


def test_the_verdict_counts_what_it_does_not_name_and_mends_gpus_otherwise_than_cpus() -> None:
    lost = Link("cuda:0", "cuda:1", "lost writes", "512 bytes did not arrive")
    line = verdict([Link("cuda:1", "cuda:0", "ok"), lost, replace(lost, source="cuda:2")])
    assert line is not None
    assert "iommu" in line
    assert line.endswith("(and 1 more)")
    assert "/dev/shm" in Link("cpu:0", "cpu:1", "lost writes").line  # noqa: S108 - a message
