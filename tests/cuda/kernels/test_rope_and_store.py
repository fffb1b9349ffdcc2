from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels import reference
from cuda.kernels.attention import AttentionShape
from cuda.kernels.backend import Backend
from cuda.kernels.rope_and_store import SOURCE, RopeAndStore, lanes_of_a_row
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught

EPS = 1e-5
NUM_POSITIONS = 40
NUM_PAGES, MAX_PAGES = 9, 4
SHAPES = {
    "llama": AttentionShape(num_heads=3, num_kv_heads=1, head_dim=64, page_size=16),
    "tiny": AttentionShape(num_heads=2, num_kv_heads=2, head_dim=16, page_size=4),
    "phi": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=96, page_size=16),
    "many heads": AttentionShape(num_heads=16, num_kv_heads=8, head_dim=128, page_size=16),
    "wide": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=256, page_size=32),
}
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 2**-8}
Array = npt.NDArray[np.floating]


@dataclass
class Case:
    """A step's inputs on the host. Some tokens are padding, and the first page of either slot lies outside the pool."""

    shape: AttentionShape
    qkv: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor] | None
    slots: torch.Tensor
    positions: torch.Tensor
    page_tables: torch.Tensor
    frequencies: Array


def case_of(shape: AttentionShape, dtype: torch.dtype, *, normed: bool, num_tokens: int, seed: int = 0) -> Case:
    random = np.random.default_rng(seed)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim

    def draw(*size: int) -> torch.Tensor:
        return torch.from_numpy(random.standard_normal(size).astype(np.float32)).to(dtype)

    places = random.permutation(2 * min(NUM_POSITIONS, MAX_PAGES * shape.page_size))[:num_tokens]
    slots, positions = places % 2, places // 2  # no two tokens at one place
    slots[1::5] = -1
    page_tables = random.permutation(NUM_PAGES)[: 2 * MAX_PAGES].reshape(2, MAX_PAGES)
    page_tables[0, 0], page_tables[1, 0] = -1, NUM_PAGES
    return Case(
        shape,
        draw(num_tokens, width),
        (draw(shape.head_dim), draw(shape.head_dim)) if normed else None,
        torch.from_numpy(slots.astype(np.int32)),
        torch.from_numpy(positions.astype(np.int32)),
        torch.from_numpy(page_tables.astype(np.int32)),
        np.power(1e4, -np.arange(shape.head_dim // 2) / (shape.head_dim // 2), dtype=np.float32),
    )


def run(backend: Backend, case: Case, pool: torch.Tensor) -> torch.Tensor:
    """The qkv rows afterwards; keys and values are in `pool`."""
    angles = np.arange(NUM_POSITIONS)[:, None] * case.frequencies.astype(np.float64)
    table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    inputs = [case.qkv, case.page_tables, case.slots, case.positions, table, *(case.norms or ())]
    qkv, tables, slots, positions, angles_there, *norms = [on_device(backend, tensor) for tensor in inputs]
    q_norm, k_norm = norms or (None, None)
    kernel = RopeAndStore(backend, case.qkv.dtype, case.shape, EPS)
    kernel(qkv, pool, tables, slots, positions, angles_there, q_norm, k_norm)
    backend.synchronize()
    return qkv.cpu()


def expected(case: Case) -> tuple[Array, Array]:
    """Rows of q, and the pool."""
    shape, count = case.shape, len(case.slots)
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    rows = case.qkv.float().numpy().reshape(count, heads + 2 * kv_heads, shape.head_dim)
    q, k, v = np.split(rows.astype(np.float64), [heads, heads + kv_heads], axis=1)
    if case.norms is not None:
        q, k = (reference.rms_norm(x, norm.float().numpy(), EPS) for x, norm in zip((q, k), case.norms, strict=True))
    q, k = (reference.rope(x, case.positions.numpy(), case.frequencies) for x in (q, k))
    pool = np.zeros((NUM_PAGES, 2, kv_heads, shape.page_size, shape.head_dim))
    for t in range(count):
        slot, (page_index, place) = int(case.slots[t]), divmod(int(case.positions[t]), shape.page_size)
        page = int(case.page_tables[slot, page_index])
        if slot < 0:
            q[t] = rows[t, :heads]
        elif 0 <= page < NUM_PAGES:
            pool[page, 0, :, place], pool[page, 1, :, place] = k[t], v[t]
    return q.reshape(count, heads * shape.head_dim), pool


def check(backend: Backend, case: Case) -> None:
    shape, dtype = case.shape, case.qkv.dtype
    pool = backend.zeros((NUM_PAGES, 2, shape.num_kv_heads, shape.page_size, shape.head_dim), dtype)
    qkv = run(backend, case, pool)
    q, stored = expected(case)
    q_columns = shape.num_heads * shape.head_dim
    assert torch.equal(qkv[:, q_columns:], case.qkv[:, q_columns:])
    np.testing.assert_allclose(qkv[:, :q_columns].float().numpy(), q, rtol=TOLERANCES[dtype], atol=3e-6)
    np.testing.assert_allclose(pool.cpu().float().numpy(), stored, rtol=TOLERANCES[dtype], atol=3e-6)


@needs_compiler
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_its_definition(mode: Mode, seed: int, dtype: torch.dtype) -> None:
    for number, shape in enumerate(SHAPES.values()):
        for num_tokens, normed in ((1, True), (7 + number, True), (29, False)):
            check(emulated(mode, seed), case_of(shape, dtype, normed=normed, num_tokens=num_tokens, seed=seed))


@needs_compiler
def test_no_tokens_are_no_work() -> None:
    check(emulated(), case_of(SHAPES["llama"], torch.float32, normed=False, num_tokens=0))


@needs_compiler
def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    check_company(emulated())


def check_company(backend: Backend) -> None:
    case = case_of(SHAPES["phi"], torch.bfloat16, normed=True, num_tokens=8)
    pool = backend.zeros((NUM_PAGES, 2, 2, 16, 96), torch.bfloat16)
    alone = backend.zeros(pool.shape, pool.dtype)
    together = run(backend, case, pool)
    for t in range(8):
        one = Case(
            case.shape,
            case.qkv[t : t + 1],
            case.norms,
            case.slots[t : t + 1],
            case.positions[t : t + 1],
            case.page_tables,
            case.frequencies,
        )
        assert torch.equal(run(backend, one, alone)[0], together[t])
    assert torch.equal(alone, pool)


@needs_compiler
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_a_pool_of_more_than_two_to_the_31_elements_is_addressed(mode: Mode) -> None:
    backend = emulated(mode)
    case = case_of(SHAPES["llama"], torch.bfloat16, normed=False, num_tokens=3)
    case.slots[:], case.positions[:] = 0, torch.tensor([0, 17, 35])
    num_pages = (1 << 31) // (2 * 16 * 64) + 70  # sparse: only the pages written take memory
    case.page_tables[0, :3] = torch.tensor([num_pages - 1, 3, num_pages - 70])
    pool = backend.empty((num_pages, 2, 1, 16, 64), torch.bfloat16)
    run(backend, case, pool)
    values = case.qkv[:, 4 * 64 :]
    for t, (page, place) in enumerate([(num_pages - 1, 0), (3, 1), (num_pages - 70, 3)]):
        assert torch.equal(pool[page, 1, 0, place], values[t])


@pytest.mark.parametrize("head_dim", [0, 8, 72, 1040])
def test_heads_that_the_kernel_cannot_take_are_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim is {head_dim}"):
        RopeAndStore(emulated(), torch.bfloat16, AttentionShape(2, 1, head_dim, 16), EPS)


@pytest.mark.parametrize(("head_dim", "lanes"), [(16, 1), (64, 4), (96, 8), (128, 8), (256, 16), (512, 32)])
def test_a_row_has_a_lane_for_each_vector_of_its_half(head_dim: int, lanes: int) -> None:
    assert lanes_of_a_row(head_dim, torch.bfloat16) == lanes


BEHIND = frozenset({"race", *OUT_OF_BOUNDS})
WRONG = frozenset({WRONG_RESULT})
MUTANTS = {
    "a page behind the pool": Mutant(SOURCE, "page >= num_pages", "page > num_pages", BEHIND),
    "a page before the pool": Mutant(SOURCE, "page < 0 || ", "", BEHIND),
    "padding not skipped": Mutant(SOURCE, "if (slot < 0) return;", "", BEHIND | WRONG),
    "a lane too many": Mutant(SOURCE, "column < half", "column <= half", BEHIND | UNSEEN),
    "a head too many": Mutant(SOURCE, "head < num_rows", "head <= num_rows", BEHIND | UNSEEN),
    "lanes that leave before the sum": Mutant(
        SOURCE, "    float scale = 1.0f;", "    if (!owns) return;\n    float scale = 1.0f;", frozenset({"warp-misuse"})
    ),
    "the sum of half the lanes": Mutant(SOURCE, "distance = num_lanes / 2", "distance = num_lanes / 4", WRONG),
    "keys for values": Mutant(SOURCE, "(page * 2 * num_kv_heads", "(page * num_kv_heads", BEHIND | WRONG),
    "a sign of the rotation": Mutant(SOURCE, "-__fmul_rn", "__fmul_rn", WRONG),
}


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    case = case_of(SHAPES["phi"], torch.bfloat16, normed=True, num_tokens=23)
    assert_caught(MUTANTS[name], lambda settings, folder: check(EmulatedBackend(settings, sources=folder), case))


@needs_compiler
def test_an_offset_of_32_bits_is_caught() -> None:
    def overflow(settings: Settings, folder: Path) -> None:
        backend = EmulatedBackend(settings, sources=folder)
        case = case_of(SHAPES["llama"], torch.bfloat16, normed=False, num_tokens=1)
        case.slots[:], case.positions[:], case.page_tables[:] = 0, 0, (1 << 31) // (2 * 16 * 64)
        run(backend, case, backend.empty(((1 << 31) // (2 * 16 * 64) + 1, 2, 1, 16, 64), torch.bfloat16))

    old = "pool + place * head_dim + column, low"
    mutant = Mutant(SOURCE, old, old.replace("place * head_dim", "static_cast<i32>(place * head_dim)"), OUT_OF_BOUNDS)
    assert_caught(mutant, overflow)
