import pickle
import subprocess
import sys

import numpy as np
import torch

from cuda.kernels.reference import rms_norm
from tests.cuda.gpu.library_rank import EXCHANGED, values
from tests.cuda.kernels.combinations import needs_compiler


@needs_compiler
def test_two_processes_exchange_through_the_library() -> None:
    command = [sys.executable, "-m", "tests.cuda.gpu.library_rank"]
    ranks = [
        subprocess.Popen([*command, f"{rank}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for rank in range(2)
    ]
    pipes = [(rank.stdin, rank.stdout) for rank in ranks]
    handles = [pickle.load(out) for _, out in pipes if out is not None]  # noqa: S301 - from our own children
    for into, _ in pipes:
        assert into is not None
        pickle.dump(handles, into)
        into.flush()
    found = [pickle.load(out) for _, out in pipes if out is not None]  # noqa: S301 - from our own children
    assert [rank.wait(30) for rank in ranks] == [0, 0]
    for pipe in (pipe for pair in pipes for pipe in pair if pipe is not None):
        pipe.close()
    both = [values(rank) for rank in range(2)]
    total = both[0]["part"] + both[1]["part"]
    for each in found:
        assert torch.equal(each["sums"], total)
        assert torch.equal(each["residual"], total + 1)
        right = rms_norm((total + 1).numpy(), np.ones(8), EXCHANGED.eps)
        np.testing.assert_allclose(each["out"].numpy(), right, rtol=2e-6, atol=1e-6)
        assert torch.equal(each["logits"], torch.cat([one["logits"] for one in both], 1))
