"""All evidence that a GPU can give, in one command of less than 8 minutes, written as JSON:

    python -m tests.benchmarks.gpu --out tests/benchmarks/results/NAME.json [--backend emu --small] [--only ITEM ...]

tests/gpu first; then ceilings measured on the machine and everything else as a share of them: kernels, attention,
decode steps against the roofline, captured against eager, idle time between steps, the all-reduce if there are several
GPUs, tokens a second through a real node. Each item runs in a process of its own: one that fails is recorded with its
error, the others go on, and the command ends with 1. `--backend emu --small` shows that all of it runs, without a GPU.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from actors.node.devices import find_gpus
from cuda.check.watched import Lost, watched
from tests.benchmarks.gpu.all_reduce import measure_all_reduce
from tests.benchmarks.gpu.figures import Ceilings, Figure, Report, Scale, measure_ceilings
from tests.benchmarks.gpu.kernels import measure_attention, measure_linears, measure_rows, measure_sampler
from tests.benchmarks.gpu.steps import measure_steps

Measure = Callable[[Report, Scale, Ceilings], None]
SILENCE_S = 120.0
TESTS_S, SANITIZER_S = 200.0, 150.0
BUDGET_S = 440.0
"""After which no item begins any more."""
STAND_IN = Ceilings(1e12, {"bfloat16": 1e14, "float32": 1e13})
"""Where the machine's own could not be measured: ratios are then marked."""


def main(arguments: Sequence[str]) -> int:
    """Run all items, write the file; 1 if any failed, 2 if there is no GPU to run them on."""
    options = _options(arguments)
    if options.backend == "cuda" and not (gpus := find_gpus()).usable:
        print(gpus.hindrance, file=sys.stderr)
        return 2
    scale = Scale.small(f"{options.backend}:0") if options.small else Scale(f"{options.backend}:0")
    began = time.perf_counter()
    results: dict[str, dict[str, Any]] = {}
    for name, figures in _items(scale, options.only, results):
        spent = time.perf_counter() - began
        results[name] = _recorded(name, figures if spent < BUDGET_S else _too_late(spent))
    failed = [name for name, item in results.items() if not item["ok"]]
    written = {
        "machine": results.pop("machine"),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "tests.benchmarks.gpu", *arguments],
        "seconds": round(time.perf_counter() - began, 1),
        "ceilings_measured": results.get("ceilings", {}).get("ok", False),
        "items": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(results)} items, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _items(scale: Scale, only: Sequence[str], results: dict[str, Any]) -> Iterator[tuple[str, Iterator[Figure]]]:
    """In order: later ones use the ceilings that are then among the results."""
    yield "machine", watched(describe_machine, scale, silence_s=SILENCE_S)
    if not only or "tests" in only:
        yield "tests", run_tests(["tests/gpu"], TESTS_S)
    yield "ceilings", watched(measure_ceilings, scale, silence_s=SILENCE_S)
    ceilings = _ceilings(results["ceilings"])
    measures: dict[str, Measure] = {
        "rows": measure_rows,
        "linears": measure_linears,
        "attention": measure_attention,
        "sampler": measure_sampler,
        "steps": measure_steps,
        "all-reduce": measure_all_reduce,
        "served": measure_served,
    }
    for name, measure in measures.items():
        if not only or name in only:
            yield name, watched(measure, scale, ceilings, silence_s=SILENCE_S)
    if scale.is_gpu and (not only or "sanitizer" in only):
        yield "sanitizer", run_tests(["tests/gpu/test_sanitizer.py", "-m", "slow"], SANITIZER_S)


def _too_late(spent_s: float) -> Iterator[Figure]:
    yield {"what": "not begun", "error": f"{spent_s:.0f} s were spent already"}


def _recorded(name: str, figures: Iterator[Figure]) -> dict[str, Any]:
    """What an item says, as far as it comes."""
    said: list[Figure] = []
    began = time.perf_counter()
    error = None
    try:
        for figure in figures:
            print(f"{name}: {figure}", flush=True)
            said.append(figure)
    except (Lost, OSError, ValueError, subprocess.SubprocessError) as failure:
        error = str(failure) if isinstance(failure, Lost) else f"{type(failure).__name__}: {failure}"
        print(f"{name}: FAILED {error}", flush=True)
    failed = error or next((figure["error"] for figure in said if "error" in figure), None)
    return {"ok": failed is None, "error": failed, "seconds": round(time.perf_counter() - began, 1), "figures": said}


def describe_machine(report: Report, scale: Scale) -> None:
    """The device's name, memory and software."""
    if not scale.is_gpu:
        report({"device": "the emulator: its times are nobody's"})
        return
    import torch  # noqa: PLC0415 - in the item's process

    from cuda.check.device import gpu_software  # noqa: PLC0415 - likewise

    properties = torch.cuda.get_device_properties(0)
    report(
        {
            "device": properties.name,
            "num_gpus": torch.cuda.device_count(),
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            **gpu_software(),
        }
    )


def run_tests(which: Sequence[str], timeout_s: float) -> Iterator[Figure]:
    """By pytest: correctness comes before speed."""
    command = [sys.executable, "-m", "pytest", *which, "-q", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    figure: Figure = {"what": " ".join(which), **counts}
    yield figure if done.returncode == 0 else {**figure, "error": done.stdout[-6000:] + done.stderr[-2000:]}


def measure_served(report: Report, scale: Scale, ceilings: Ceilings) -> None:
    """Tokens a second through a real node and its own load generator, beside reading the weights once a step."""
    from tests.benchmarks.serving import bench  # noqa: PLC0415 - imports transformers
    from tests.cuda.models.tiny import tiny_model  # noqa: PLC0415 - likewise
    from tests.end_to_end.running_node import running_node  # noqa: PLC0415 - likewise

    with TemporaryDirectory() as name:
        folder = Path(name)
        model = str(tiny_model(folder)) if not scale.is_gpu else "demo"
        length, count = (8, 4) if not scale.is_gpu else (64, 128)
        workload = [{"prompt_tokens": [5 + i] * length, "max_tokens": count} for i in range(64 if scale.is_gpu else 3)]
        file = folder / "workload.json"
        file.write_text(json.dumps(workload), encoding="utf-8")
        flags = ("--model", model, "--devices", scale.device, "--no-prefix-cache")
        with running_node(*flags) as node:
            bench(node, file, 8)  # warms
            for concurrency in (1, 8, 64) if scale.is_gpu else (1, 3):
                figures = bench(node, file, concurrency)
                tokens_s = figures["output_throughput"]
                limit = concurrency * ceilings.bandwidth / _weights_bytes(model)
                report(
                    {
                        "what": f"served, {concurrency} at a time",
                        "tokens_s": round(tokens_s, 1),
                        "tpot_p50_ms": round(figures["median_tpot_ms"], 3),
                        "ttft_p50_ms": round(figures["median_ttft_ms"], 2),
                        "of_limit": round(tokens_s / limit, 4),
                    }
                )


def _weights_bytes(model: str) -> int:
    from cuda.models.folder import prepare_model  # noqa: PLC0415 - in the item's process

    return sum(file.stat().st_size for file in prepare_model(model).glob("*.safetensors"))


def _ceilings(item: dict[str, Any]) -> Ceilings:
    if not item["ok"]:
        return STAND_IN
    figure = item["figures"][0]
    return Ceilings(figure["bandwidth"], figure["flops"])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=["cuda", "emu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], help="some items only; ceilings are always measured")
    return parser.parse_args(arguments)
