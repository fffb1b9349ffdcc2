from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda.emulator import Settings
from cuda.emulator.build import Mode
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels.backend import Backend
from cuda.kernels.gather import SOURCE, Gather, Scatter
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler, on_device
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, UNSEEN, WRONG_RESULT, Mutant, assert_caught

VOCAB, NUM_SLOTS, STRIDE = 11, 3, 5
FIRST = 4
"""Token of a table that lacks those before."""
OUTSIDE = [-1, -(2**31), 2**31 - 1]


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def picked(table: torch.Tensor, indexes: Sequence[int]) -> torch.Tensor:
    """Row by row, zeros for an index that is not there."""
    rows = [table[index] if 0 <= index < len(table) else torch.zeros_like(table[0]) for index in indexes]
    return torch.stack(rows) if rows else table[:0]


def check_embed(backend: Backend, dtype: torch.dtype, num_columns: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_columns)
    table = torch.randn((VOCAB, num_columns), generator=generator).to(dtype)
    tokens = torch.randint(0, VOCAB, (NUM_SLOTS, STRIDE), generator=generator, dtype=torch.int32)
    tokens[1, :4] = int32([*OUTSIDE, VOCAB])
    tokens[2, 4] = VOCAB - 1
    slots, positions = [2, -1, 1, 1, 1, 1, 0, 2, NUM_SLOTS, 0, 0], [4, 0, 0, 1, 2, 3, 0, 1, 0, STRIDE, -1]
    slots, positions = slots[:num_rows], positions[:num_rows]
    out = backend.empty((num_rows, num_columns), dtype)
    gather = Gather(backend, dtype, num_columns)
    lists = [on_device(backend, x) for x in (tokens, int32(slots), int32(positions))]
    gather.embed(out, on_device(backend, table), *lists)
    part = backend.empty((num_rows, num_columns), dtype)
    gather.embed(part, on_device(backend, table[FIRST:]), *lists, first_token=FIRST)
    backend.synchronize()
    found = [
        int(tokens[slot, position]) if 0 <= slot < NUM_SLOTS and 0 <= position < STRIDE else -1
        for slot, position in zip(slots, positions, strict=True)
    ]
    assert torch.equal(out.cpu(), picked(table, found))
    assert torch.equal(part.cpu(), picked(table[FIRST:], [token - FIRST for token in found]))


def check_take_rows(backend: Backend, dtype: torch.dtype, num_columns: int, num_rows: int) -> None:
    x = torch.randn((4, num_columns), generator=torch.Generator().manual_seed(1)).to(dtype)
    indexes = [3, 0, 3, *OUTSIDE, 4, 1][:num_rows]
    out = backend.empty((len(indexes), num_columns), dtype)
    Gather(backend, dtype, num_columns).take_rows(out, on_device(backend, x), on_device(backend, int32(indexes)))
    backend.synchronize()
    assert torch.equal(out.cpu(), picked(x, indexes))


def check_scatter(backend: Backend, num_updates: int) -> None:
    before = torch.arange(7 * 101, dtype=torch.int32).view(7, 101)
    cells = np.random.default_rng(2).permutation(7 * 101)[:num_updates]
    updates = [[cell // 101, cell % 101, -cell] for cell in cells.tolist()]
    misses = [[7, 0, 9], [-1, 0, 9], [0, 101, 9], [1, -1, 9]]
    table = on_device(backend, before)
    Scatter(backend)(table, on_device(backend, int32([*updates, *misses] if updates else []).view(-1, 3)))
    backend.synchronize()
    right = before.clone()
    for row, column, value in updates:
        right[row, column] = value
    assert torch.equal(table.cpu(), right)


@needs_compiler
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_columns", "num_rows"), [(8, 0), (8, 1), (72, 11), (2568, 3)])
def test_rows_are_those_of_their_tokens(
    mode: Mode, seed: int, dtype: torch.dtype, num_columns: int, num_rows: int
) -> None:
    check_embed(emulated(mode, seed), dtype, num_columns, num_rows)
    check_take_rows(emulated(mode, seed), dtype, num_columns, num_rows)


@needs_compiler
@each_way
@pytest.mark.parametrize("num_updates", [0, 1, 300])
def test_only_the_cells_named_are_set(mode: Mode, seed: int, num_updates: int) -> None:
    check_scatter(emulated(mode, seed), num_updates)


@needs_compiler
def test_a_table_beyond_32_bits_of_elements_is_reached() -> None:
    backend = EmulatedBackend()
    table = backend.empty((270_000, 8192), torch.bfloat16)  # 4.4 GB of addresses; only the last row is ever touched
    table[-1] = 3.0
    out = backend.empty((1, 8192), torch.bfloat16)
    Gather(backend, torch.bfloat16, 8192).take_rows(out, table, on_device(backend, int32([269_999])))
    backend.synchronize()
    assert torch.equal(out[0], table[-1])


@pytest.mark.parametrize("num_columns", [0, 4, 2047])
def test_rows_that_are_not_whole_vectors_are_refused(num_columns: int) -> None:
    with pytest.raises(ValueError, match=f"num_columns is {num_columns}"):
        Gather(EmulatedBackend(), torch.bfloat16, num_columns)


def run_all(settings: Settings, sources: Path) -> None:
    backend = EmulatedBackend(settings, sources=sources)
    check_embed(backend, torch.float32, 72, 11)
    check_take_rows(backend, torch.float32, 72, 8)
    check_scatter(backend, 300)


WRONG = frozenset({WRONG_RESULT})
MUTANTS = {
    "a token one beyond the table": Mutant(SOURCE, "- first_token < num", "- first_token <= num", OUT_OF_BOUNDS),
    "negative tokens believed": Mutant(SOURCE, "token >= first_token && ", "", OUT_OF_BOUNDS),
    "padding rows read": Mutant(SOURCE, "slot >= 0 && ", "", OUT_OF_BOUNDS | WRONG),
    "an index one beyond the rows": Mutant(SOURCE, "index < num_rows", "index <= num_rows", OUT_OF_BOUNDS),
    "a vector too many": Mutant(SOURCE, "column < num_columns; column +=", "column <= num_columns; column +=",
                                OUT_OF_BOUNDS | UNSEEN),
    "padding rows left as they were": Mutant(SOURCE, "store_vector(out + column, source", "if (source != nullptr) "
                                             "store_vector(out + column, source", UNSEEN | WRONG),
    "updates behind the list": Mutant(SOURCE, "if (number >= num_updates) return;", "", OUT_OF_BOUNDS),
    "an update's last part from its neighbour": Mutant(SOURCE, "updates[first + 2]", "updates[first + 3]",
                                                       OUT_OF_BOUNDS | WRONG),
    "a column behind the row": Mutant(SOURCE, "&& column < num_columns)", ")", WRONG),
    "a barrier more, which is harmless": Mutant(SOURCE, "    const i32 index = ", "    __syncthreads();\n"
                                                "    const i32 index = "),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert_caught(MUTANTS[name], run_all)
