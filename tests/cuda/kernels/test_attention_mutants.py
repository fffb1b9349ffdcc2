from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from cuda.emulator import Settings
from cuda.gpu.backends.emulated import EmulatedBackend
from cuda.kernels.attention import AttentionShape
from tests.cuda.kernels.attention_case import Attended, assert_right, make_case
from tests.cuda.kernels.combinations import needs_compiler
from tests.cuda.kernels.mutants import OUT_OF_BOUNDS, STALE_COPY, UNSEEN, WRONG_RESULT, Mutant, assert_caught

MAIN, ROWS, TILES, TOTAL = "attention.cu", "attention_rows.cuh", "attention_tiles.cuh", "attention_total.cuh"
WRONG = frozenset({WRONG_RESULT})
MISALIGNED = frozenset({"misaligned"})
OVERFLOW = frozenset({"undefined", *OUT_OF_BOUNDS})
ITEM_BARRIER = "        __syncthreads();  // no warp fills the shared memory of the next item"
BLOCK_BARRIER = "__syncthreads();  // the pair is here"
WARP_BARRIER = "__syncwarp();  // the tile is here"
COMMIT = "        ptx::cp_async_commit();\n        asked ="
VALUES_FRAGMENTS = "const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};\n                ptx::mma_m16n8k16_bf16(o"

MUTANTS = {
    "no barrier before a pair is used": Mutant(TILES, BLOCK_BARRIER, "//", STALE_COPY),
    "no warp barrier before a tile is used": Mutant(TILES, WARP_BARRIER, "//", STALE_COPY),
    "no barrier between items": Mutant(MAIN, ITEM_BARRIER, "//", STALE_COPY | WRONG),
    "a warp's wait for one copy less": Mutant(TILES, "wait<Keys::ring - 2>", "wait<Keys::ring - 1>", STALE_COPY),
    "the block's wait for no copy": Mutant(TILES, "cp_async_wait<0>", "cp_async_wait<1>", STALE_COPY),
    "copies that are not committed": Mutant(TILES, COMMIT, "        asked =", STALE_COPY),
    "a key behind the row's own": Mutant(ROWS, "key > last[i / 2])", "key > last[i / 2] + 1)", WRONG),
    "a window one key too long": Mutant(TILES, "position + 1 - window", "position - window", WRONG),
    "the page behind": Mutant(TILES, "table[key / page_size]", "table[key / page_size + 1]", WRONG | OUT_OF_BOUNDS),
    "fragments of the values swapped": Mutant(
        ROWS, VALUES_FRAGMENTS, VALUES_FRAGMENTS.replace("b[0], b[1]", "b[1], b[0]"), WRONG
    ),
    "infinity from infinity": Mutant(ROWS, "base[i] = now == minus_infinity() ? 0.0f : now;", "base[i] = now;", WRONG),
    "outputs not rescaled": Mutant(ROWS, "o[n][i] = __fmul_rn(o[n][i], kept[i / 2]);", "(void)0;", WRONG),
    "a split's share merged into another's": Mutant(TOTAL, "fmaf(total, kept,", "fmaf(total, added,", WRONG),
    "the total read before it came": Mutant(MAIN, "ptx::barrier_sync(1 + warp, 64);", "", UNSEEN | {"deadlock"}),
    "partial results in each other's rows": Mutant(
        MAIN, "first_key / split_keys) * item.num_rows", "first_key / split_keys)", WRONG | UNSEEN
    ),
    "rows of a tile off their alignment": Mutant(
        TILES, "even / 8 * 8) * 16", "even / 8 * 8) * 16 + row * 8", MISALIGNED
    ),
    "bank conflicts, which are harmless here": Mutant(TILES, "even % 8 ^ odd ^ turn", "even % 8 ^ odd"),
}
FLOAT_MUTANTS = {
    "weights read before all are there": Mutant(ROWS, "__syncwarp();  // every lane sees", "//", UNSEEN),
}
BEHIND = frozenset({WRONG_RESULT, "race", *OUT_OF_BOUNDS})
NARROW_MUTANTS = {
    "a lane that stores a column which is not there": Mutant(ROWS, "        if (!has_columns()) return;\n", "", BEHIND),
    "a lane that hands on a column which is not there": Mutant(TOTAL, " || !rows.has_columns()", "", BEHIND),
    "a lane that combines a column which is not there": Mutant(
        MAIN, "        if (!has_columns) continue;\n", "", BEHIND
    ),
    "the values of a column which is not there": Mutant(ROWS, "lane % dim / 4", "lane / 4", STALE_COPY),
}


def attend(dtype: torch.dtype, settings: Settings, sources: Path, head_dim: int = 64) -> None:
    """Rows whose splits pass from warp to warp, rows whose splits are combined, a large tile, and a window."""
    backend = EmulatedBackend(settings, num_multiprocessors=1, sources=sources)
    case = make_case(AttentionShape(4, 2, head_dim, 16), dtype, [290, 60, 530])
    attended = Attended(backend, case)
    assert_right(attended([(0, 288, 2), (1, 0, 60)], padding=1), case, [(0, 288, 2), (1, 0, 60)])
    cut = replace(attended.kernel.planner, num_blocks=1000)
    assert_right(attended([(2, 528, 2)], planner=cut), case, [(2, 528, 2)])

    windowed = make_case(AttentionShape(4, 2, head_dim, 16, window=40), dtype, [110])
    assert_right(Attended(backend, windowed)([(0, 96, 8)]), windowed, [(0, 96, 8)])


@needs_compiler
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert_caught(MUTANTS[name], partial(attend, torch.bfloat16))


@needs_compiler
@pytest.mark.parametrize("name", FLOAT_MUTANTS)
def test_a_bug_in_the_path_of_floats_is_caught(name: str) -> None:
    assert_caught(FLOAT_MUTANTS[name], partial(attend, torch.float32))


@needs_compiler
@pytest.mark.parametrize("name", NARROW_MUTANTS)
def test_a_bug_in_the_path_of_heads_with_fewer_columns_than_lanes_is_caught(name: str) -> None:
    assert_caught(NARROW_MUTANTS[name], partial(attend, torch.float32, head_dim=16))


@needs_compiler
def test_an_offset_of_32_bits_is_caught() -> None:
    def attend_far_away(settings: Settings, sources: Path) -> None:
        backend = EmulatedBackend(settings, sources=sources)
        case = make_case(AttentionShape(2, 1, 64, 16), torch.bfloat16, [20])
        first = (1 << 31) // (2 * 16 * 64)
        pool = backend.empty((first + len(case.pool), *case.pool.shape[1:]), torch.bfloat16)
        backend.copy(pool[first:], case.pool)
        far = replace(case, page_tables=case.page_tables + first)
        assert_right(Attended(backend, far, pool)([(0, 19, 1)]), case, [(0, 19, 1)])

    mutant = Mutant(TILES, "page * page_elements", "page * static_cast<i32>(page_elements)", OVERFLOW)
    assert_caught(mutant, attend_far_away)
