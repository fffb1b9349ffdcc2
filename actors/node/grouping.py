"""Which devices share the model when nobody said: the sizes of groups are compared for the model that is to be served.

The devices are tried out in a process of their own, which gets as long as it may take and not a moment more
(`cuda.check.trials`). What is made of its figures: `actors.node.prediction`. A start without a choice never comes here.
"""

import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from actors.node.config import NodeConfig
from actors.node.devices import core_shares, grouped, usable_cores
from actors.node.prediction import ROWS, Candidate, Choice, Memory, Wanted, candidates, choose, fullest, shards_by_size
from actors.node.sharing import item_bytes
from cuda.check.trials.trial import LIMIT_S, Trial, TrialResult
from cuda.models.folder import read_spec
from cuda.models.kv import FREE_MEMORY_SHARE, GPU_MEMORY_SHARE, available_memory
from cuda.models.spec import ModelSpec
from protocol.model_info import ModelInfo

COMMAND = (sys.executable, "-m", "cuda.check.trials")
QUANTIZED_BYTES = {"int8": 1 + 2 / 32, "int4": 1 / 2 + 4 / 32}
"""Of a weight, with its share of the scales of a group of 32."""
GPU_RESERVE_BYTES = 1 << 30
"""For a step's buffers and what `cuda.gpu.loading` keeps free."""
CPU_RESERVE_BYTES = 512 << 20
"""Of a worker's process, beside weights and KV."""
MIB = 1 << 20
_HEADS = ("", "tp", "groups", "fits", "weights/rank", "KV tokens/group", "compute ms", "exchange ms", "step ms", "")
log = structlog.get_logger()


@dataclass(frozen=True)
class Plan:
    """Sizes compared."""

    candidates: tuple[Candidate, ...]
    choice: Choice


def choose_groups(config: NodeConfig, model: ModelInfo) -> NodeConfig:
    """Return the configuration with the groups that it is to be served with, where `tp_is_auto`."""
    choice = compare(config, model).choice
    log.info("tensor-parallel size chosen", tp=choice.size, reason=choice.reason)
    return msgspec.structs.replace(config, groups=grouped(config.devices, choice.size))


def printed_plan(config: NodeConfig, model: ModelInfo) -> str:
    """Return the table of sizes, with what was or would be chosen; measures in any case."""
    plan = compare(config, model)
    chosen, reason = {plan.choice.size: None}, plan.choice.reason
    if not config.tp_is_auto:
        chosen = dict.fromkeys(group.size for group in config.groups)
        reason = "as the settings say" if len(config.devices) > 1 else "there is one device"
    return f"{table(plan.candidates, chosen)}\ntp {','.join(map(str, chosen))}: {reason}"


def compare(config: NodeConfig, model: ModelInfo) -> Plan:
    """Compare all sizes of groups of the devices."""
    spec = read_spec(Path(model.folder))
    kind, *others = {device.partition(":")[0] for device in config.devices}
    replicas = "devices of several kinds cannot share out one model" if others else ""
    if not others and kind not in {"cpu", "cuda"}:
        replicas = f"{kind} devices are for tests: how long they take says nothing"
    result = None
    if not replicas:
        try:
            result = run_trial(_trial(config, model, spec, kind))
        except TrialError as error:
            log.warning("the devices could not be timed; --tp sets the size", reason=str(error))
    wanted = _wanted(config, model, spec, item_bytes(config) if result is None else result.item_bytes)
    memory = None if replicas else _memory(kind, result)
    tried = candidates(len(config.devices), wanted, memory, () if result is None else result.paces)
    return Plan(tried, Choice(1, replicas) if replicas else choose(tried))


def _trial(config: NodeConfig, model: ModelInfo, spec: ModelSpec, kind: str) -> Trial:
    num_devices = len(config.devices)
    shards = {
        size: of_size for size, of_size in shards_by_size(spec, num_devices).items() if not isinstance(of_size, str)
    }
    return Trial(
        kind=kind,
        devices=tuple(int(device.partition(":")[2]) for device in config.devices),
        folder=model.folder,
        dtype=config.device.dtype,
        quantization=config.device.quantization,
        rows=ROWS,
        hidden_size=spec.hidden_size,
        sizes=tuple(shards),
        values=tuple(fullest(spec, of_size) for of_size in shards.values()),
        cores=tuple(core_shares(num_devices)) if kind == "cpu" else (),
        num_threads=max(1, usable_cores() // num_devices),
    )


def _wanted(config: NodeConfig, model: ModelInfo, spec: ModelSpec, item_bytes: int) -> Wanted:
    return Wanted(
        spec=spec,
        value_bytes=QUANTIZED_BYTES.get(config.device.quantization, item_bytes),
        item_bytes=item_bytes,
        device=config.device,
        max_running=config.scheduler.max_running,
        max_model_len=model.max_model_len,
    )


def _memory(kind: str, result: TrialResult | None) -> Memory | None:
    if kind == "cpu":
        return Memory(available_memory(), is_shared=True, pool_share=FREE_MEMORY_SHARE, reserve_bytes=CPU_RESERVE_BYTES)
    if result is None:
        return None
    return Memory(result.free_bytes, is_shared=False, pool_share=GPU_MEMORY_SHARE, reserve_bytes=GPU_RESERVE_BYTES)


class TrialError(Exception):
    """One line that says why nothing was measured."""


def run_trial(trial: Trial, *, command: tuple[str, ...] = COMMAND, limit_s: float = LIMIT_S) -> TrialResult:
    """Measure. TrialError if that cannot be done, or not in time."""
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and code
            command, input=msgspec.msgpack.encode(trial), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrialError(f"not done after {limit_s:g} s") from None
    if ended.returncode:
        words = ended.stderr.decode(errors="replace").strip().splitlines()
        raise TrialError(words[-1] if words else f"ended with {ended.returncode}")
    return msgspec.msgpack.decode(ended.stdout, type=TrialResult)


def table(tried: Sequence[Candidate], chosen: Collection[int]) -> str:
    """Return a line for each; a star before those of a size in `chosen`, what hinders the others behind them."""
    rows = [_HEADS, *(_cells(candidate, candidate.size in chosen) for candidate in tried)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _cells(candidate: Candidate, is_chosen: bool) -> tuple[str, ...]:  # noqa: FBT001 - one cell
    room = candidate.room
    times = (candidate.compute_s, candidate.exchange_s, candidate.step_s)
    return (
        "*" if is_chosen else "",
        str(candidate.size),
        str(candidate.num_groups),
        "no" if candidate.hindrance else "yes" if room else "?",
        f"{room.weights_bytes / MIB:,.0f} MiB" if room else "-",
        f"{room.kv_tokens:,}" if room else "-",
        *("-" if seconds is None else f"{1e3 * seconds:.3f}" for seconds in times),
        candidate.hindrance,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    *figures, words = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join((*figures, words.strip())).rstrip()
