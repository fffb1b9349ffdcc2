"""Which devices form groups when nobody said: the sizes are compared for the model that is to be served.

Read `actors.node.prediction` for how, `actors.node.trials` for where the figures come from.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from actors.node.config import NodeConfig
from actors.node.cores import core_shares, usable_cores
from actors.node.devices import grouped
from actors.node.group_memory import Memory, Wanted
from actors.node.plan_table import table
from actors.node.prediction import ROWS, Candidate, Choice, candidates, choose, fullest, shards_by_size
from actors.node.trials import TrialError, run_trial
from cuda.check.trial import Trial, TrialResult
from cuda.devices.host import available_memory
from cuda.models.folder import read_spec
from cuda.models.kv import FREE_MEMORY_SHARE, GPU_MEMORY_SHARE
from cuda.models.spec import ModelSpec
from protocol.model_info import ModelInfo

QUANTIZED_BYTES = {"int8": 1 + 2 / 32, "int4": 1 / 2 + 4 / 32}
"""Of a weight, with its share of the scales of a group of 32."""
GPU_RESERVE_BYTES = 1 << 30
"""For a step's buffers and what `cuda.gpu.loading` keeps free."""
CPU_RESERVE_BYTES = 512 << 20
"""Of a worker's process, beside weights and KV."""
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
    if config.tp_is_auto:
        return f"{table(plan.candidates, {plan.choice.size})}\ntp {plan.choice.size}: {plan.choice.reason}"
    sizes = dict.fromkeys(group.size for group in config.groups)
    reason = "as the settings say" if len(config.devices) > 1 else "there is one device"
    return f"{table(plan.candidates, sizes)}\ntp {','.join(map(str, sizes))}: {reason}"


def compare(config: NodeConfig, model: ModelInfo) -> Plan:
    """Compare all sizes of groups of the devices."""
    spec = read_spec(Path(model.folder))
    kinds = {device.partition(":")[0] for device in config.devices}
    kind = kinds.pop()
    if kinds:
        return _replicas(config, model, spec, "devices of several kinds cannot share out one model")
    if kind not in {"cpu", "cuda"}:
        return _replicas(config, model, spec, f"{kind} devices are for tests: how long they take says nothing")
    try:
        result = run_trial(_trial(config, model, spec, kind))
    except TrialError as error:
        log.warning("the devices could not be timed; --tp sets the size", reason=str(error))
        result = None
    wanted = _wanted(config, model, spec, _item_bytes(config) if result is None else result.item_bytes)
    tried = candidates(len(config.devices), wanted, _memory(kind, result), () if result is None else result.paces)
    return Plan(tried, choose(tried))


def _replicas(config: NodeConfig, model: ModelInfo, spec: ModelSpec, reason: str) -> Plan:
    wanted = _wanted(config, model, spec, _item_bytes(config))
    return Plan(candidates(len(config.devices), wanted, None), Choice(1, reason))


def _trial(config: NodeConfig, model: ModelInfo, spec: ModelSpec, kind: str) -> Trial:
    num_devices = len(config.devices)
    shards = {
        size: of_size for size, of_size in shards_by_size(spec, num_devices).items() if not isinstance(of_size, str)
    }
    return Trial(
        kind=kind,
        devices=tuple(int(device.partition(":")[2]) for device in config.devices),
        folder=model.folder,
        dtype=config.dtype,
        quantization=config.quantization,
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
        value_bytes=QUANTIZED_BYTES.get(config.quantization, item_bytes),
        item_bytes=item_bytes,
        page_size=config.page_size,
        num_pages=config.num_pages,
        kv_memory=config.kv_memory,
        max_running=config.max_running,
        max_model_len=model.max_model_len,
    )


def _item_bytes(config: NodeConfig) -> int:
    return 2 if config.dtype == "bfloat16" else 4


def _memory(kind: str, result: TrialResult | None) -> Memory | None:
    if kind == "cpu":
        return Memory(available_memory(), is_shared=True, pool_share=FREE_MEMORY_SHARE, reserve_bytes=CPU_RESERVE_BYTES)
    if result is None:
        return None
    return Memory(result.free_bytes, is_shared=False, pool_share=GPU_MEMORY_SHARE, reserve_bytes=GPU_RESERVE_BYTES)
