from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from cuda.emulator.build import Mode
from cuda.kernels.attention import HEAD_DIMS, AttentionShape, PagedAttention, resident_blocks, shared_bytes
from tests.cuda.kernels.attention_case import Attended, Segment, Step, assert_right, make_case
from tests.cuda.kernels.combinations import each_way, emulated, needs_compiler

FLOAT, HALF = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Scene:
    """Requests, and a step over them."""

    shape: AttentionShape
    dtype: torch.dtype
    lengths: Sequence[int]
    segments: Sequence[Segment]
    padding: int = 0
    shared_pages: int = 0


MIXED = [(0, 600, 1), (1, 20, 37), (2, 0, 5), (3, 128, 1), (4, 0, 1)]
MIXED_LENGTHS = [601, 57, 5, 129, 1]
SCENES = {
    "no rows": Scene(AttentionShape(2, 1, 64, 16), HALF, [1], []),
    "padding only": Scene(AttentionShape(2, 1, 64, 16), HALF, [1], [], padding=3),
    "groups of 3": Scene(AttentionShape(6, 2, 64, 16), HALF, MIXED_LENGTHS, MIXED, padding=2),
    "groups of 3, float": Scene(AttentionShape(6, 2, 64, 16), FLOAT, MIXED_LENGTHS, MIXED, padding=1),
    "no groups, small pages": Scene(AttentionShape(2, 2, 64, 8), HALF, [300, 90], [(0, 297, 3), (1, 20, 70)]),
    "one KV head of 8": Scene(AttentionShape(8, 1, 64, 32), HALF, [290, 140], [(0, 289, 1), (1, 130, 10)]),
    "a group of more rows than a tile": Scene(
        AttentionShape(40, 1, 64, 16), HALF, [140, 33], [(0, 139, 1), (1, 32, 1)]
    ),
    "pages of one token": Scene(AttentionShape(4, 1, 64, 1), HALF, [150], [(0, 149, 1)]),
    "pages of 1024": Scene(AttentionShape(4, 1, 64, 1024), HALF, [1030], [(0, 1025, 5)]),
    "pages of no power of two": Scene(AttentionShape(4, 1, 64, 24), FLOAT, [150], [(0, 140, 10)]),
    "a shared prefix": Scene(
        AttentionShape(2, 1, 64, 16), HALF, [140, 150], [(0, 139, 1), (1, 148, 2)], shared_pages=8
    ),
    "a window": Scene(AttentionShape(4, 2, 64, 16, window=150), HALF, [600, 300], [(0, 599, 1), (1, 200, 70)]),
    "a window of one": Scene(AttentionShape(4, 2, 64, 16, window=1), FLOAT, [300, 40], [(0, 299, 1), (1, 0, 40)]),
    "a soft cap": Scene(AttentionShape(4, 2, 64, 16, soft_cap=1.5), HALF, [300, 40], [(0, 299, 1), (1, 20, 20)]),
    "a soft cap, float": Scene(AttentionShape(4, 2, 64, 16, soft_cap=1.5), FLOAT, [140], [(0, 120, 20)]),
    "heads of 16": Scene(
        AttentionShape(4, 2, 16, 16, window=150), HALF, [600, 300, 1], [(0, 599, 1), (1, 200, 70), (2, 0, 1)]
    ),
    "heads of 16, float": Scene(AttentionShape(4, 2, 16, 16), FLOAT, MIXED_LENGTHS, MIXED, padding=1),
    "heads of 32": Scene(AttentionShape(3, 1, 32, 16), HALF, [280, 40], [(0, 279, 1), (1, 5, 30)]),
    "heads of 96": Scene(AttentionShape(3, 1, 96, 16), HALF, [280, 40], [(0, 279, 1), (1, 5, 30)]),
    "heads of 128": Scene(AttentionShape(4, 1, 128, 16), HALF, [280, 40], [(0, 279, 1), (1, 5, 25)]),
    "heads of 256": Scene(AttentionShape(2, 1, 256, 16), HALF, [280, 40], [(0, 279, 1), (1, 5, 20)]),
}


@needs_compiler
@each_way
@pytest.mark.parametrize("name", SCENES)
def test_it_equals_its_definition(mode: Mode, seed: int, name: str) -> None:
    scene = SCENES[name]
    case = make_case(scene.shape, scene.dtype, scene.lengths, shared_pages=scene.shared_pages, seed=seed)
    out = Attended(emulated(mode, seed), case)(scene.segments, padding=scene.padding)
    assert_right(out, case, scene.segments)


@needs_compiler
@pytest.mark.parametrize("head_dim", [32, 96, 128, 256])
def test_floats_of_every_head_size(head_dim: int) -> None:
    case = make_case(AttentionShape(3, 1, head_dim, 16), FLOAT, [280, 40])
    segments = [(0, 279, 1), (1, 5, 30)]
    assert_right(Attended(emulated(), case)(segments), case, segments)


@needs_compiler
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_a_work_list_longer_than_the_grid(mode: Mode) -> None:
    case = make_case(AttentionShape(4, 2, 64, 16), HALF, [20 * n + 1 for n in range(12)])
    segments = [(n, 20 * n, 1) for n in range(12)]
    attended = Attended(emulated(mode, 3, num_multiprocessors=1), case)
    assert attended.kernel.planner.num_blocks < 12 * 2
    assert_right(attended(segments), case, segments)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    kind = torch.int16 if left.dtype == HALF else torch.int32
    return torch.equal(left.contiguous().view(kind), right.contiguous().view(kind))


@needs_compiler
@pytest.mark.parametrize(("head_dim", "window"), [(64, 0), (64, 200), (16, 0), (32, 0)])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_a_rows_bits_depend_on_nothing_but_its_position_and_keys(
    dtype: torch.dtype, head_dim: int, window: int
) -> None:
    length = 450
    case = make_case(AttentionShape(4, 1, head_dim, 16, window), dtype, [length, 333, 77, 700])
    attended = Attended(emulated(), case)
    planner = attended.kernel.planner
    whole = attended([(0, 0, length)])
    chunks = [(0, 0, 1), (0, 1, 2), (0, 3, 60), (0, 63, 5), (0, 68, 132), (0, 200, 7), (0, 207, 243)]
    assert same_bits(torch.cat([attended([chunk]) for chunk in chunks]), whole)

    company = [(1, 330, 3), (0, 350, 100), (2, 0, 77), (3, 699, 1)]
    assert same_bits(attended(company)[3:103], whole[350:450])

    tail = attended([(0, 380, 70)], planner=replace(planner, large_tiles=False))
    assert same_bits(tail, whole[380:])

    long = 699
    assert planner.work_items([3], [long], [1])[1][1] == (window == 0)  # its partial results are combined
    uncut = replace(planner, max_partial_rows=0)
    assert same_bits(attended([(3, long, 1)]), attended([(3, long, 1)], planner=uncut))
    for position in (0, 127, 128, length - 1):
        assert same_bits(attended([(0, position, 1)])[0], whole[position])


@needs_compiler
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_pages_behind_two_to_the_31_elements(mode: Mode) -> None:
    case = make_case(AttentionShape(2, 1, 64, 16), HALF, [40, 20])
    backend = emulated(mode)
    first = (1 << 31) // (2 * 16 * 64)
    pool = backend.empty((first + len(case.pool), *case.pool.shape[1:]), HALF)  # sparse: a few pages take memory
    backend.copy(pool[first:], case.pool)
    far = replace(case, page_tables=case.page_tables + first)
    segments = [(0, 39, 1), (1, 0, 20)]
    assert_right(Attended(backend, far, pool)(segments), case, segments)


@needs_compiler
def test_a_page_that_does_not_exist_is_not_read() -> None:
    case = make_case(AttentionShape(2, 1, 64, 16), HALF, [40])
    case.page_tables[0, 1] = -7
    out = Attended(emulated("check"), case)([(0, 15, 1), (0, 39, 1)])
    assert_right(out[:1], case, [(0, 15, 1)])
    assert out[1].isfinite().all()


@needs_compiler
def test_a_recorded_launch_takes_the_next_steps_work_list() -> None:
    case = make_case(AttentionShape(4, 2, 64, 16), HALF, [700, 300])
    backend = emulated()
    attended = Attended(backend, case)
    first, second = [(0, 10, 1), (1, 20, 1)], [(1, 299, 1), (0, 699, 1)]
    step, other = Step(backend, case, first), Step(backend, case, second)
    step.plan(backend, attended.kernel.planner, first)
    graph = backend.capture(lambda: attended.launch(step))

    graph.launch()
    backend.synchronize()
    assert_right(step.out.view(2, 4, 64), case, first)

    backend.copy(step.qkv, other.qkv)
    step.plan(backend, attended.kernel.planner, second)
    graph.launch()
    backend.synchronize()
    assert_right(step.out.view(2, 4, 64), case, second)


@needs_compiler
def test_a_row_without_keys_is_zero_and_never_nan() -> None:
    # The list's row lies before position 0, which no request has: what the kernel does where nothing is visible.
    case = make_case(AttentionShape(1, 1, 64, 16), FLOAT, [20])
    backend = emulated()
    attended = Attended(backend, case)
    step = Step(backend, case, [(0, 0, 2)])
    backend.copy(step.items[:1], torch.tensor([[0, 0, -1, 0, 2, 0, 1, -1]], dtype=torch.int32))
    backend.copy(step.num_items, torch.tensor([1, 0], dtype=torch.int32))
    attended.launch(step)
    backend.synchronize()
    assert not step.out[0].any()
    assert step.out[1].isfinite().all()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (AttentionShape(4, 2, 80, 16), "head_dim is 80"),
        (AttentionShape(5, 2, 64, 16), "num_heads is 5"),
        (AttentionShape(0, 2, 64, 16), "num_heads is 0"),
        (AttentionShape(4, 0, 64, 16), "num_heads is 4"),
        (AttentionShape(4, 2, 64, 0), "page_size is 0"),
        (AttentionShape(4, 2, 64, 16, window=-1), "window is -1"),
        (AttentionShape(4, 2, 64, 16, soft_cap=-1), "soft_cap -1"),
    ],
)
def test_shapes_without_a_kernel_are_refused(shape: AttentionShape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PagedAttention(emulated(), HALF, shape)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_block_fits_every_supported_gpu(dtype: torch.dtype, head_dim: int) -> None:
    assert shared_bytes(head_dim, dtype) <= 99 << 10
    assert resident_blocks(shared_bytes(head_dim, dtype), 227 << 10) == 2  # H200, B200
    if head_dim >= 64:
        assert resident_blocks(shared_bytes(head_dim, dtype), 99 << 10) == 1  # L40S
