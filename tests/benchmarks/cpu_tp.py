"""Tensor parallelism on the CPU: two ranks on one core each beside one rank on one core, and the all-reduce alone.

    python -m tests.benchmarks.cpu_tp [--model demo] [--rows 8] [--context 150] [--rounds 7] [--realtime]

Ranks are processes, each bound to a core. Greedy tokens of both are compared first; then rounds of decode steps are
timed in turns, and medians and ratios printed. With `--realtime` (root only) a round, a second or less, is run before
anything else on the machine: for machines that are never quiet. The bars are those of the design: 0.65 of one
rank's time (aim 0.55), 60 us (aim 20) for an all-reduce of 8 rows x 576 with the norm that it is part of.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cuda.collectives.membership import Membership
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import ADD_RMS_NORM, TAKE_ROWS, Program
from cuda.cpu.ranks import CpuRanks
from cuda.devices.device import DeviceConfig
from cuda.models.folder import prepare_model, read_spec
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow

STEPS = 12
"""Of a round."""
ALL_REDUCES = 400
WIDTH = 576
TPOT_BAR, TPOT_AIM = 0.65, 0.55
REDUCE_BAR_US, REDUCE_AIM_US = 60, 20


class Ranks:
    """`world_size` processes that run `serve` on one core each."""

    def __init__(self, config: DeviceConfig, world_size: int, options: argparse.Namespace) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ends: list[Connection[Any, Any]] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = spawn.Pipe()
            own = replace(config, rank=rank, world_size=world_size)
            self._ends.append(ours)
            self._processes.append(spawn.Process(target=serve, args=(theirs, own, options), daemon=True))
            self._processes[-1].start()
        handles = [end.recv() for end in self._ends]
        self.ask(handles)

    def ask(self, command: object) -> list[Any]:
        """Tell all ranks at once; their answers."""
        for end in self._ends:
            end.send(command)
        return [end.recv() for end in self._ends]

    def close(self) -> None:
        """End the processes."""
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send("end")
            process.join()


def serve(end: Any, config: DeviceConfig, options: argparse.Namespace) -> None:
    """Be a rank: decode steps for "steps", the rows' prompts again for "prefill", all-reduces for "reduce"."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[config.rank % len(cores)]})
    from cuda.cpu.device import CpuDevice  # noqa: PLC0415 - torch counts the cores when it is imported

    device = CpuDevice(config)
    device.load(lambda _done: None)
    end.send(device.export())
    device.open_peers(end.recv())
    end.send("ready")
    decoder = Decoder(device, config, options.rows, options.context)
    while (command := end.recv()) != "end":
        if options.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        if command == "reduce":
            answer: object = reduce_us(end, config)
        else:
            answer = decoder.run_steps() if command == "steps" else decoder.prefill()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        end.send(answer)
    device.close()


class Decoder:
    """`rows` requests with `context` tokens behind each; decodes the same positions again in every round."""

    def __init__(self, device: Any, config: DeviceConfig, rows: int, context: int) -> None:
        self._device = device
        self._rows = rows
        self._context = context
        random = np.random.default_rng(0)
        sampling = SamplingParams(max_tokens=STEPS + 1, temperature=0, seed=0)
        prompts = random.integers(100, 1000, (rows, context)).tolist()
        num_pages = -(-(context + STEPS + 2) // config.page_size)
        pages = [tuple(range(slot * num_pages, (slot + 1) * num_pages)) for slot in range(rows)]
        self._prefill = StepPlan(
            1,
            0,
            [RowStart(slot, slot, 0, prompt, context, sampling) for slot, prompt in enumerate(prompts)],
            [StepRow(slot, 0, context, True, pages[slot]) for slot in range(rows)],
        )
        self.prefill()

    def prefill(self) -> tuple[list[float], list[int]]:
        """Seconds of one step over all prompts, and the tokens drawn."""
        began = time.perf_counter()
        result = self._device.execute(self._prefill)
        return [time.perf_counter() - began], [row.token for row in result.rows]

    def run_steps(self) -> tuple[list[float], list[int]]:
        """Seconds of each step, and the tokens drawn."""
        seconds, tokens = [], []
        for step in range(STEPS):
            plan = StepPlan(1, step, [], [StepRow(slot, self._context + step, 1, True) for slot in range(self._rows)])
            began = time.perf_counter()
            result = self._device.execute(plan)
            seconds.append(time.perf_counter() - began)
            tokens += [row.token for row in result.rows]
        return seconds, tokens


def reduce_us(end: Any, config: DeviceConfig) -> float:
    """Microseconds of one of many all-reduces of 8 rows x 576: the write of a part, the meeting, the sum and norm."""
    rows, row_bytes = 8, WIDTH * 4
    ranks = CpuRanks(Membership(config.rank, config.world_size, 10.0), rows * row_bytes)
    end.send(ranks.export())
    ranks.open_peers(end.recv())
    program = Program(1, 64)
    count, order = np.array([rows], np.int64), np.arange(rows, dtype=np.int32)
    eps = np.array([1e-5])
    x, residual, normed = (aligned_zeros((rows, WIDTH), np.float32) for _ in range(3))
    weight = aligned_zeros(WIDTH, np.float32)
    for index in range(ALL_REDUCES):
        part, parts = ranks.own_part(index % 2), ranks.parts[index % 2]
        program.record(TAKE_ROWS, [address(count), address(order), address(x), row_bytes, part, row_bytes, WIDTH])
        ranks.record_meeting(program, address(count))
        arguments = [address(residual), address(parts), len(parts), address(weight), address(normed), WIDTH, row_bytes]
        program.record(ADD_RMS_NORM, [address(count), *arguments, address(eps)])
    program.run()
    began = time.perf_counter()
    program.run()
    seconds = time.perf_counter() - began
    ranks.check(0)
    program.close()
    ranks.close()
    return seconds / ALL_REDUCES * 1e6


def compare(single: Ranks, group: Ranks, command: str, rounds: int) -> tuple[list[float], list[float]]:
    """Median ms of each round's steps, by the one rank and by the group, in turns; their tokens must be the same."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        drawn = []
        for ranks, found in zip((single, group), times, strict=True):
            answers = ranks.ask(command)
            drawn += [tokens for _, tokens in answers]
            # Ranks keep step, so the time of each is that of all.
            found.append(statistics.fmean(statistics.median(seconds) for seconds, _ in answers) * 1e3)
        if any(tokens != drawn[0] for tokens in drawn):
            sys.exit("the ranks do not draw what one device draws")
    return times


def measure_reduce(group: Ranks) -> float:
    """One measurement; ranks make memory of their own for it, whose handles go around here."""
    for end in group._ends:
        end.send("reduce")
    handles = [end.recv() for end in group._ends]
    return float(max(group.ask(handles)))


def verdict(value: float, bar: float, aim: float) -> str:
    """How a measured figure stands."""
    return "reaches the aim" if value <= aim else "holds the bar" if value <= bar else "MISSES THE BAR"


def main(arguments: Sequence[str]) -> None:
    """Compare, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args(arguments)
    folder = prepare_model(options.model)
    config = DeviceConfig(
        folder=str(folder), dtype="float32", page_size=16, num_pages=options.rows * (options.context // 16 + 4),
        kv_memory=None, max_running=options.rows, max_model_len=options.context + STEPS + 2, max_step_tokens=1024,
        quantization="none", batch_invariant=False, num_threads=1, peer_timeout_s=10.0,
    )  # fmt: skip
    single = Ranks(config, 1, options)
    group = Ranks(config, 2, options)
    print(f"{read_spec(folder).num_layers} layers, {options.rows} rows behind {options.context} tokens, greedy")
    for command in ("prefill", "steps"):
        compare(single, group, command, 1)
        one, two = compare(single, group, command, options.rounds)
        ratios = [b / a for a, b in zip(one, two, strict=True)]
        ratio = statistics.median(ratios)
        what = "decode step" if command == "steps" else f"prefill of {options.rows * options.context}"
        print(f"{what}: {statistics.median(one):.2f} ms on one core, {statistics.median(two):.2f} ms on two")
        bar = f"; bar {TPOT_BAR}, aim {TPOT_AIM}): {verdict(ratio, TPOT_BAR, TPOT_AIM)}" if command == "steps" else ")"
        print(f"  ratio {ratio:.3f} ({min(ratios):.3f}-{max(ratios):.3f}{bar}")
    latencies = [measure_reduce(group) for _ in range(options.rounds)]
    latency = statistics.median(latencies)
    print(
        f"all-reduce + norm of 8 x {WIDTH}, 2 ranks {latency:.1f} us ({min(latencies):.1f}-{max(latencies):.1f}; "
        f"bar {REDUCE_BAR_US}, aim {REDUCE_AIM_US}): {verdict(latency, REDUCE_BAR_US, REDUCE_AIM_US)}"
    )
    single.close()
    group.close()


if __name__ == "__main__":
    main(sys.argv[1:])
