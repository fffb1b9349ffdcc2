"""A rank that exchanges through the library, in a process of its own: `python -m tests.cuda.gpu.library_rank`.

Writes its handle, reads all handles, then writes what it found, pickled.
"""

import pickle
import sys
from typing import Any

import torch

from cuda.collectives.membership import Membership
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.gpu.library_ranks import LibraryRanks
from cuda.gpu.ranks import Exchanged
from tests.cuda.kernels.combinations import on_device

EXCHANGED = Exchanged(torch.float32, 5, 8, 1e-5, 3, (range(5), range(5, 12)))


def values(rank: int) -> dict[str, torch.Tensor]:
    """What a rank brings."""
    generator = torch.Generator().manual_seed(rank)
    shapes = {"part": (5, 8), "logits": (2, len(EXCHANGED.vocabulary[rank]))}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def play(rank: int) -> dict[str, Any]:
    backend = EmulatedBackend()
    ranks = LibraryRanks(backend, Membership(rank, 2, 20.0), EXCHANGED)
    answer(ranks.export())
    ranks.open_peers(pickle.load(sys.stdin.buffer))  # noqa: S301 - from our own parent
    mine = values(rank)
    sums, out = backend.empty((5, 8), torch.float32), backend.empty((5, 8), torch.float32)
    residual, weight = on_device(backend, torch.ones(5, 8)), on_device(backend, torch.ones(8))
    logits = on_device(backend, mine["logits"])

    def step() -> None:
        backend.copy(ranks.part(5), mine["part"])
        ranks.sum(sums)
        ranks.all_reduce_add_rms_norm(out, residual, weight)
        ranks.gather_logits(logits)

    backend.capture(step).launch()
    backend.synchronize()
    found = {"sums": sums, "residual": residual, "out": out, "logits": ranks.logits[:2]}
    found = {name: tensor.clone() for name, tensor in found.items()}
    ranks.close()
    backend.close()
    return found


def answer(value: object) -> None:
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    answer(play(int(sys.argv[1])))
