"""The seam between the gpu device and what its ranks exchange within a step.

Implementations: `cuda.gpu.ranks.GpuRanks` through each other's memory, and
`cuda.gpu.library_ranks.LibraryRanks` where the machine does not let them. All is queued on the backend's
stream and may be captured; all ranks of a group make the same calls in the same order.
"""

from collections.abc import Sequence
from typing import Protocol

import torch


class Exchange(Protocol):
    """One rank's end. PeerMemoryFailed and PeerTimeout as `cuda.collectives.peer_memory` has them."""

    @property
    def logits(self) -> torch.Tensor:
        """[most R, V]: what `gather_logits` gives the first rows of."""

    def export(self) -> bytes:
        """The handle under which the other ranks find this one."""

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """Meet all ranks, given in rank order, own included; before the first call of those below."""

    def part(self, num_rows: int) -> torch.Tensor:
        """[num_rows, E] that the next sum takes: who writes it does so on the backend's stream."""

    def all_reduce_add_rms_norm(self, out: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
        """Add the sum of all ranks' parts to `residual` [T, E]; its norm times `weight` [E] goes to `out` [T, E]."""

    def sum(self, out: torch.Tensor) -> None:
        """The sum of all ranks' parts to `out` [T, E]."""

    def gather_logits(self, mine: torch.Tensor) -> torch.Tensor:
        """[R, V] from every rank's columns, `mine` [R, own] float32; the caller's to write until the next call."""

    def check(self, step: int) -> None:
        """PeerTimeout if it is known that what failed on the device, in `step`, is that a rank did not come."""

    def close(self) -> None:
        """Let go of everything; tensors given out must not be used then."""
