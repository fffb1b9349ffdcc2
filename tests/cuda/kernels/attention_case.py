"""A step of attention: requests with pages in shuffled order, and what each row should come to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cuda.kernels.attention import AttentionShape, PagedAttention
from cuda.kernels.attention_plan import ITEM_FIELDS, WorkPlanner
from cuda.kernels.backend import Backend
from cuda.kernels.reference import paged_attention
from tests.cuda.kernels.combinations import on_device

Array = npt.NDArray[np.floating]
Segment = tuple[int, int, int]
"""Request, position of the first token, number of tokens."""
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 2**-6}
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """Requests of given lengths: every position has queries, a key and a value.

    Attributes:
        queries: One tensor for each request, [length, H, D].
        pool: [pages, 2, K, S, D]; what no request holds is not a number.
        page_tables: int32 [requests, max_pages]; what lies behind a request's pages is no page.
    """

    shape: AttentionShape
    dtype: torch.dtype
    queries: list[torch.Tensor]
    pool: torch.Tensor
    page_tables: torch.Tensor


def make_case(
    shape: AttentionShape, dtype: torch.dtype, lengths: Sequence[int], *, shared_pages: int = 0, seed: int = 0
) -> Case:
    """`shared_pages`: so many first pages are the same for all requests."""
    random = np.random.default_rng(seed)

    def draw(*size: int) -> torch.Tensor:
        return torch.from_numpy(random.standard_normal(size).astype(np.float32)).to(dtype)

    num_pages = [-(-length // shape.page_size) for length in lengths]
    order = random.permutation(sum(num_pages) + 3)
    tables = np.full((len(lengths), max(num_pages) + 1), 1 << 30, np.int32)
    pool = torch.full((len(order), 2, shape.num_kv_heads, shape.page_size, shape.head_dim), NAN, dtype=dtype)
    for request, length in enumerate(lengths):
        first = sum(num_pages[:request])
        tables[request, : num_pages[request]] = order[first : first + num_pages[request]]
        tables[request, :shared_pages] = tables[0, :shared_pages]
        for number in range(shared_pages if request else 0, num_pages[request]):
            used = min(shape.page_size, length - number * shape.page_size)
            pool[tables[request, number], :, :, :used] = draw(2, shape.num_kv_heads, used, shape.head_dim)
    queries = [2 * draw(length, shape.num_heads, shape.head_dim) for length in lengths]
    return Case(shape, dtype, queries, pool, torch.from_numpy(tables))


class Attended:
    """A case on a device, whose segments can be attended to in any company.

    Args:
        backend: Where.
        case: Of which requests.
        pool: Where the case's pages lie on the device; None copies them there.
    """

    def __init__(self, backend: Backend, case: Case, pool: torch.Tensor | None = None) -> None:
        self.case = case
        self.kernel = PagedAttention(backend, case.dtype, case.shape, partial_bytes=1 << 20)
        self._backend = backend
        self._pool = on_device(backend, case.pool) if pool is None else pool
        self._tables = on_device(backend, case.page_tables)

    def __call__(
        self, segments: Sequence[Segment], *, padding: int = 0, planner: WorkPlanner | None = None
    ) -> torch.Tensor:
        """[T + padding, H, D], by the work list of the kernel's planner or another one."""
        step = Step(self._backend, self.case, segments, padding)
        step.plan(self._backend, planner or self.kernel.planner, segments)
        self.launch(step)
        self._backend.synchronize()
        return step.out.cpu().view(-1, self.case.shape.num_heads, self.case.shape.head_dim)

    def launch(self, step: "Step") -> None:
        """Queue the kernels."""
        self.kernel(step.out, step.qkv, self._pool, self._tables, step.slots, step.items, step.num_items)


class Step:
    """One step's arrays on the device; the work list has room for 256 items."""

    def __init__(self, backend: Backend, case: Case, segments: Sequence[Segment], padding: int = 0) -> None:
        shape = case.shape
        q = [case.queries[request][start : start + count].flatten(1) for request, start, count in segments]
        q = [*q, torch.full((padding, shape.num_heads * shape.head_dim), NAN, dtype=case.dtype)]
        kv = torch.full((sum(map(len, q)), 2 * shape.num_kv_heads * shape.head_dim), NAN, dtype=case.dtype)
        slots = [request for request, _, count in segments for _ in range(count)] + [-1] * padding
        self.qkv = on_device(backend, torch.cat([torch.cat(q), kv], dim=1))
        self.slots = on_device(backend, torch.tensor(slots, dtype=torch.int32))
        self.out = backend.empty((len(slots), shape.num_heads * shape.head_dim), case.dtype)
        self.items = backend.empty((256, ITEM_FIELDS), torch.int32)
        self.num_items = backend.empty((2,), torch.int32)

    def plan(self, backend: Backend, planner: WorkPlanner, segments: Sequence[Segment]) -> None:
        """Replace the work list."""
        slots, starts, counts = np.array(segments, np.int32).reshape(-1, 3).T
        items, num_items = planner.work_items(slots, starts, counts)
        backend.copy(self.items[: len(items)], torch.from_numpy(items))
        backend.copy(self.num_items, torch.from_numpy(num_items))


def expected(case: Case, segments: Sequence[Segment]) -> Array:
    """[T, H, D] by definition."""
    pool = np.nan_to_num(case.pool.float().numpy())
    rows: list[Array] = [np.empty((0, case.shape.num_heads, case.shape.head_dim))]
    for request, start, count in segments:
        table = case.page_tables[request, : -(-(start + count) // case.shape.page_size)].tolist()
        q = case.queries[request][start : start + count].float().numpy()
        rows.append(paged_attention(q, pool, table, start, case.shape.window or None, case.shape.soft_cap or None))
    return np.concatenate(rows)


def assert_right(out: torch.Tensor, case: Case, segments: Sequence[Segment]) -> None:
    """The rows of the segments equal their definition; those behind them are zeros."""
    right = expected(case, segments)
    np.testing.assert_allclose(out[: len(right)].float().numpy(), right, rtol=0, atol=TOLERANCES[case.dtype])
    np.testing.assert_array_equal(out[len(right) :].float().numpy(), 0)
