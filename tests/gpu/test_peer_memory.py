"""CUDA IPC: two processes on one GPU, and every pair of GPUs if there are several."""

import pytest
import torch

from cuda.check.peers.proof import prove, prove_sum, verdict


def test_two_processes_on_one_gpu_reach_each_others_memory() -> None:
    assert verdict(prove(["cuda:0", "cuda:0"])) is None


@pytest.mark.parametrize("num_processes", [2, 3])
def test_several_processes_on_one_gpu_sum_their_parts(num_processes: int) -> None:
    assert prove_sum(["cuda:0"] * num_processes) is None


def test_every_pair_of_gpus_is_proven_fit_or_unfit() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    links = prove([f"cuda:{index}" for index in range(torch.cuda.device_count())])
    print(*(link.line for link in links), sep="\n")
    if verdict(links) is None:
        assert prove_sum([f"cuda:{index}" for index in range(torch.cuda.device_count())][:8]) is None
    assert {link.fitness for link in links} <= {"ok", "refused mapping", "lost writes"}
