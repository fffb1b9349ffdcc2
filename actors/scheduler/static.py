"""`--batching static`: a batch is taken from those who wait, and nobody joins until its longest member has ended.

It exists to be compared with, so it is given everything else the engine has: paged KV, chunked prefill, overlap, tokens
streamed at once, and rows that have ended cost no compute. Only its slots stay held, which `batch_utilization` shows.
"""


class BatchGate:
    """Says who may join; `num_held` row slots belong to the present batch."""

    def __init__(self, *, static: bool) -> None:
        self.is_static = static
        self._num_members = 0

    def is_open(self, num_running: int) -> bool:
        """May waiting requests join this step?"""
        return not self.is_static or num_running == 0

    def close(self, num_running: int) -> None:
        """Admission of this step is over: who runs now is the batch."""
        self._num_members = num_running

    def num_held(self, num_running: int) -> int:
        """Row slots that are taken, whether or not they do useful work."""
        return self._num_members if self.is_static else num_running
