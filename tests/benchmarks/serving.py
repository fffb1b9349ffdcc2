"""The whole engine on one workload, beside its own device run bare: `python -m tests.benchmarks.serving`.

    --workload FILE     [{"prompt_tokens": [...], "max_tokens": n}, ...]: the requests that peers were measured on;
                        without it 32 prompts of 64 tokens, 16 to 128 output tokens (seed 0)
    --quantization Q …  none int8 int4
    --concurrency N …   requests at a time (default 1 8 32)

1. Correctness: every output, alone and 8 at a time, is what transformers' logits say, token by token.
2. Bare: the same requests, all at once, through the pure scheduler and the device in one thread: no sockets, no
   processes. The sum of its steps is what the engine cannot beat.
3. Served: a real node and `client bench`. Engine cost = 1 - bare steps / wall, at all requests at once.
   Both are medians of REPEATS runs: the machine drifts.
4. Overlap: 32 streams on a device that only sleeps its step time; what the engine adds to it.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: a busy neighbour must not stall its threads

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.scheduler import Scheduler
from cuda.cpu.device import CpuDevice
from cuda.devices.device import DeviceConfig
from cuda.models.folder import prepare_model, read_model_info
from protocol.messages import Submit
from protocol.sampling import SamplingParams
from tests.end_to_end.one_thread import run
from tests.end_to_end.running_node import RunningNode, running_node

Workload = list[dict[str, Any]]
REPEATS = 5
MAX_RUNNING = 64
STEP_TOKENS = 512
SLEEP_MS = 30


def main() -> None:
    arguments = _arguments()
    workload: Workload = json.loads(arguments.workload.read_text()) if arguments.workload else own_workload()
    num_tokens = sum(request["max_tokens"] for request in workload)
    print(f"{len(workload)} requests, {num_tokens} output tokens, {os.cpu_count()} cores")
    for quantization in arguments.quantization:
        measure(workload, quantization, arguments.concurrency)
    sleeping_device()


def measure(workload: Workload, quantization: str, concurrencies: list[int]) -> None:
    runs = [run_bare(workload, quantization) for _ in range(REPEATS)]
    outputs, bare_s, num_steps = sorted(runs, key=lambda run: run[1])[REPEATS // 2]
    if quantization == "none":
        check(workload, outputs)
    num_tokens = sum(len(output) for output in outputs)
    print(f"\n{quantization}: bare {bare_s:.2f} s in {num_steps} steps, {num_tokens / bare_s:.0f} tok/s")
    flags = ("--no-prefix-cache", "--quantization", quantization)
    with running_node(*flags) as node, TemporaryDirectory() as folder:
        file = Path(folder, "workload.json")
        file.write_text(json.dumps(workload))
        bench(node, file, 8)  # warms
        for concurrency in concurrencies:
            figures = median_bench(node, file, concurrency)
            show(figures, concurrency)
            if concurrency >= len(workload):
                print(f"     engine cost {1 - bare_s / figures['duration']:.1%} of the wall time (bar 12 %)")


def run_bare(workload: Workload, quantization: str) -> tuple[list[list[int]], float, int]:
    """(outputs, seconds of all steps, number of steps) of all requests at once."""
    folder = prepare_model("demo")
    config = DeviceConfig(
        folder=str(folder),
        dtype="float32",
        page_size=16,
        num_pages=1024,
        kv_memory=None,
        max_running=MAX_RUNNING,
        max_model_len=8192,
        max_step_tokens=STEP_TOKENS,
        quantization=quantization,
        batch_invariant=False,
        num_threads=os.cpu_count() or 1,
        peer_timeout_s=10.0,
    )
    device = CpuDevice(config)
    pool = device.load(lambda _: None)
    scheduler = Scheduler(
        SchedulerConfig(max_running=MAX_RUNNING, step_tokens=STEP_TOKENS, prefix_cache=False, overlap=False),
        read_model_info(folder, "demo", None),
        1,
        lambda: 1,
    )
    scheduler.add_group(0, 0, pool.num_pages, pool.page_size)
    found = run(scheduler, device, [_submit(number, request) for number, request in enumerate(workload)])
    device.close()
    outputs = list(found.outputs.values())
    assert [len(output) for output in outputs] == [request["max_tokens"] for request in workload]
    return outputs, found.device_s, found.num_steps


def _submit(number: int, request: dict[str, Any]) -> Submit:
    sampling = SamplingParams(max_tokens=request["max_tokens"], temperature=0, ignore_eos=True)
    return Submit(request=number, prompt_tokens=request["prompt_tokens"], sampling=sampling)


def check(workload: Workload, outputs: list[list[int]]) -> None:
    """Fail unless transformers, given each prompt and output, would have said the same at every position."""
    model = AutoModelForCausalLM.from_pretrained(prepare_model("demo"), dtype=torch.float32)
    for request, output in zip(workload, outputs, strict=True):
        prompt = request["prompt_tokens"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == output
    print(f"all {len(outputs)} greedy outputs are those of transformers")


def median_bench(node: RunningNode, file: Path, concurrency: int) -> dict[str, Any]:
    """The figures of the run with the median duration."""
    runs = [bench(node, file, concurrency) for _ in range(REPEATS)]
    return sorted(runs, key=lambda figures: float(figures["duration"]))[REPEATS // 2]


def bench(node: RunningNode, file: Path, concurrency: int) -> dict[str, Any]:
    """The figures of one run of the load generator."""
    save = file.with_name("figures.json")
    command = [sys.executable, "-m", "client", "bench", "--url", node.url, "--dataset", "file", str(file)]
    command += ["--temperature", "0", "--max-concurrency", str(concurrency), "--save", str(save)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures: dict[str, Any] = json.loads(save.read_text())
    assert figures["failed"] == figures["refused"] == 0
    return figures


def show(figures: dict[str, Any], concurrency: int) -> None:
    print(
        f"  {concurrency:3d} at a time: {figures['output_throughput']:6.1f} tok/s"
        f"   TTFT p50 {figures['median_ttft_ms']:6.1f} p99 {figures['p99_ttft_ms']:6.1f} ms"
        f"   TPOT p50 {figures['median_tpot_ms']:5.2f} p99 {figures['p99_tpot_ms']:5.2f} ms"
    )


def sleeping_device() -> None:
    """32 streams of 200 tokens; a step takes exactly SLEEP_MS, or longer where the engine was late."""
    workload = [{"prompt_tokens": [5 + i] * 64, "max_tokens": 200} for i in range(32)]
    flags = ("--devices", "counting", "--counting-step-ms", str(SLEEP_MS), "--no-prefix-cache")
    with running_node(*flags) as node, TemporaryDirectory() as folder:
        file = Path(folder, "workload.json")
        file.write_text(json.dumps(workload))
        bench(node, file, 32)
        steps = node.metric("step_duration_seconds_count")
        busy_s = node.metric("step_duration_seconds_sum")
        figures = bench(node, file, 32)
        steps = node.metric("step_duration_seconds_count") - steps
        busy_s = node.metric("step_duration_seconds_sum") - busy_s
    wall_s = figures["duration"]
    print(
        f"\nsleeping device: {steps:.0f} steps of {1000 * busy_s / steps:.2f} ms in {wall_s:.2f} s:"
        f" the engine adds {1 - busy_s / wall_s:.2%} (bar 2 %)"
    )


def own_workload() -> Workload:
    """Varied text of exactly 64 tokens; lengths like the peers'."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(prepare_model("demo"))
    ids = tokenizer(Path("ARCHITECTURE.md").read_text())["input_ids"]
    lengths = torch.randint(16, 129, (32,), generator=generator).tolist()
    return [{"prompt_tokens": ids[i * 20 : i * 20 + 64], "max_tokens": n} for i, n in enumerate(lengths)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a workload and compare with the device run bare.")
    parser.add_argument("--workload", type=Path)
    parser.add_argument("--quantization", nargs="+", default=["none"], choices=["none", "int8", "int4"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    return parser.parse_args()


if __name__ == "__main__":
    main()
