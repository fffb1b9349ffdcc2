"""Ranks that exchange through torch's collectives, where they do not reach each other's memory: NCCL on GPUs.

Slower for small messages, and sums are made in the library's order: all ranks get the same bits, but other bits than
`GpuRanks`. One group a process. The emulator plays it with Gloo.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

from cuda.collectives.membership import Membership
from cuda.collectives.peer_memory import PeerMemoryFailed
from cuda.gpu.ranks import Exchanged
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.backend import Backend

_HOST: Final = "127.0.0.1"


class LibraryRanks:
    """See `Exchange`. Rank 0 holds the store in which the library's own handles are put down."""

    def __init__(self, backend: Backend, member: Membership, exchanged: Exchanged) -> None:
        self._backend = backend
        self._member = member
        self._exchanged = exchanged
        self._timeout = timedelta(seconds=member.timeout_s)
        self._norm = AddRmsNorm(backend, exchanged.dtype, exchanged.hidden_size, exchanged.eps)
        self._parts = backend.empty((exchanged.max_tokens, exchanged.hidden_size), exchanged.dtype)
        self.logits = backend.empty((exchanged.max_rows, exchanged.num_columns), torch.float32)
        """See `Exchange`."""
        self._store: Any = None
        if member.rank == 0:
            self._store = self._open_store(0, is_master=True)

    def export(self) -> bytes:
        """See `Exchange`."""
        return b"" if self._store is None else f"{self._store.port}".encode()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """See `Exchange`. PeerMemoryFailed if the library does not bring the ranks together in time."""
        member, device = self._member, self._backend.device
        library, of_device = ("nccl", device) if device.type == "cuda" else ("gloo", None)
        try:
            if self._store is None:
                self._store = self._open_store(int(handles[0]), is_master=False)
            distributed.init_process_group(
                library, store=self._store, rank=member.rank, world_size=member.world_size, timeout=self._timeout,
                device_id=of_device,  # NCCL would guess it from the rank
            )  # fmt: skip
            distributed.barrier()
        except (RuntimeError, ValueError) as error:
            raise PeerMemoryFailed(f"rank {member.rank} does not meet its peers through {library}: {error}") from error

    def part(self, num_rows: int) -> torch.Tensor:
        """See `Exchange`."""
        return self._parts[:num_rows]

    def all_reduce_add_rms_norm(self, out: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
        """See `Exchange`."""
        part = self.part(out.shape[0])
        self._all_reduce(part)
        self._norm(out, residual, part, weight)

    def sum(self, out: torch.Tensor) -> None:
        """See `Exchange`."""
        self._backend.copy(out, self.part(out.shape[0]))
        self._all_reduce(out)

    def gather_logits(self, mine: torch.Tensor) -> torch.Tensor:
        """See `Exchange`. A sum in which all terms but one are zero: the library gathers equal sizes only."""
        rows, own = self.logits[: mine.shape[0]], self._exchanged.vocabulary[self._member.rank]
        self._backend.call(rows, rows.zero_)
        self._backend.copy(rows[:, own.start : own.stop], mine)
        self._all_reduce(rows)
        return rows

    def check(self, step: int) -> None:
        """See `Exchange`. The library says by itself what it waited for."""

    def close(self) -> None:
        """See `Exchange`."""
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._store = None

    def _all_reduce(self, rows: torch.Tensor) -> None:
        if rows.shape[0]:
            self._backend.call(rows, lambda: distributed.all_reduce(rows))

    def _open_store(self, port: int, *, is_master: bool) -> Any:  # noqa: ANN401 - torch has no types for its stores
        size = self._member.world_size
        store: Any = distributed.TCPStore  # type: ignore[attr-defined]  # as above
        return store(_HOST, port, size, is_master, self._timeout, wait_for_workers=False)
