"""The program: instructions in order, on any number of threads, and kernels that come back from the cache."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cuda.cpu.kernels import jit
from cuda.cpu.kernels.memory import address
from cuda.cpu.kernels.program import TAKE_ROWS, Program
from tests.cuda.kernels.runner import aligned


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_each_instruction_sees_what_the_one_before_wrote(num_threads: int) -> None:
    rows, width, steps = 40, 16, 50
    random = np.random.default_rng(0)
    buffers = [aligned(random.normal(size=(rows, width))), aligned(np.zeros((rows, width)))]
    order = random.permutation(rows).astype(np.int32)
    count = np.array([rows], np.int64)
    expected = buffers[0]
    program = Program(num_threads, 4096)
    for step in range(steps):
        source, target = buffers[step % 2], buffers[1 - step % 2]
        arguments = [count, order, source, width * 4, target, width * 4, width]
        program.record(TAKE_ROWS, [address(a) if isinstance(a, np.ndarray) else a for a in arguments])
        expected = expected[order]
    start = buffers[0].copy()
    program.run()
    np.testing.assert_array_equal(buffers[0], expected)
    buffers[0][:] = start
    program.run()
    np.testing.assert_array_equal(buffers[0], expected)
    program.close()


def test_threads_that_come_late_to_a_run_leave_the_next_ones_alone() -> None:
    width, steps = 64, 20
    random = np.random.default_rng(1)
    buffers = [aligned(np.zeros((64, width))) for _ in range(steps + 1)]
    order = np.arange(64, dtype=np.int32)[::-1].copy()
    count = np.array([0], np.int64)
    program = Program(6, 4096)  # more threads than cores: some are late in most runs
    for step in range(steps):
        source, target = buffers[step], buffers[step + 1]
        program.record(
            TAKE_ROWS, [address(count), address(order), address(source), width * 4, address(target), width * 4, width]
        )
    for _ in range(300):
        rows = int(random.integers(0, 65))
        count[0] = rows
        order[:rows] = random.permutation(rows)
        buffers[0][:] = random.normal(size=(64, width))
        for buffer in buffers[1:]:
            buffer[:] = -1
        program.run()
        expected = buffers[0][:rows]
        for buffer in buffers[1:]:
            expected = expected[order[:rows]]
            np.testing.assert_array_equal(buffer[:rows], expected)
            assert (buffer[rows:] == -1).all()
    program.close()


def test_kernels_of_a_second_process_come_from_the_cache() -> None:
    script = (
        "from cuda.cpu.kernels.program import compile_kernels, run_program\n"
        "compile_kernels()\n"
        "print(sum(run_program.stats.cache_hits.values()), sum(run_program.stats.cache_misses.values()))\n"
    )
    outputs = [
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert outputs[1].split() == ["1", "0"]


def test_any_changed_source_has_a_cache_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "kernels"
    shutil.copytree(jit.HERE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    before = jit.cache_folder()
    monkeypatch.setattr(jit, "HERE", sources)
    assert jit.cache_folder() == before
    for source in sources.glob("*.py"):
        text = source.read_text()
        source.write_text(text + "\n")
        assert jit.cache_folder() != before, source.name
        source.write_text(text)
