"""What the node tells each child process about itself: its own configuration made into those of the parts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from actors.ingress.config import IngressConfig
from actors.node.config import NodeConfig
from actors.node.cores import core_shares, usable_cores
from actors.scheduler.config import SchedulerConfig
from actors.worker.config import WorkerConfig
from protocol.messages import Slo
from protocol.model_info import ModelInfo

OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}
"""Models are local: a look-up at the hub would only hang."""


class Place(Struct, frozen=True):
    """What every child is told."""

    run_dir: str
    node_pid: int
    loop: Literal["uvloop", "asyncio"]
    log_level: str
    log_format: Literal["console", "json"]


class ChildSpec(Struct, frozen=True, tag=True):
    """Base of what a child process is told about itself, by its line to the node."""

    place: Place


class SchedulerSpec(ChildSpec, frozen=True):
    """Be the scheduler of groups of workers."""

    config: SchedulerConfig
    model: ModelInfo
    group_sizes: tuple[int, ...]
    """Workers are numbered through, group by group, in rank order."""


class IngressSpec(ChildSpec, frozen=True):
    """Be the ingress on the listening socket that was inherited as `listener`."""

    config: IngressConfig
    model: ModelInfo
    num_workers: int
    listener: int


class WorkerSpec(ChildSpec, frozen=True):
    """Be one worker."""

    config: WorkerConfig


AnySpec = SchedulerSpec | IngressSpec | WorkerSpec


def scheduler_config(config: NodeConfig) -> SchedulerConfig:
    """Return the scheduler's part."""
    return SchedulerConfig(
        max_running=config.max_running,
        step_tokens=config.step_tokens,
        max_waiting=config.max_waiting,
        max_waiting_tokens=config.max_waiting_tokens,
        batching=config.batching,
        prefix_cache=config.prefix_cache,
        chunked_prefill=config.chunked_prefill,
        overlap=config.overlap,
        resume_ttl_s=config.resume_ttl_s,
        peer_timeout_s=config.peer_timeout_s,
    )


def ingress_config(config: NodeConfig) -> IngressConfig:
    """Return the ingress's part."""
    return IngressConfig(
        api_keys=config.api_keys,
        allowed_origins=config.allowed_origins,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        max_message_bytes=config.max_message_bytes,
        default_slo=_default_slo(config),
    )


def _default_slo(config: NodeConfig) -> Slo | None:
    if config.default_slo_ttft_ms is None and config.default_slo_tpot_ms is None:
        return None
    return Slo(config.default_slo_ttft_ms, config.default_slo_tpot_ms)


def worker_configs(
    config: NodeConfig,
    model: ModelInfo,
    *,
    kv_memory: Sequence[int | None] | None = None,
    num_cores: int | None = None,
    unfit: Collection[int] = (),
) -> list[WorkerConfig]:
    """Return each worker's part, in the order of `config.devices`; `kv_memory`: of each, if that is not the setting.

    GPUs of the groups in `unfit` do not reach each other's memory.
    CPU workers share the cores evenly; those of a group of several ranks keep to theirs.
    """
    num_workers = len(config.devices)
    num_threads = max(1, (num_cores or usable_cores()) // num_workers)
    shares = core_shares(num_workers)
    places = [(index, rank, group) for index, group in enumerate(config.groups) for rank in range(group.size)]
    return [
        WorkerConfig(
            index=worker,
            group=str(index),
            rank=rank,
            world_size=group.size,
            peer_timeout_s=config.peer_timeout_s,
            peer_to_peer=index not in unfit,
            device=group.devices[rank],
            cores=shares[worker] if group.size > 1 and group.devices[rank].startswith("cpu") else (),
            model_name=model.name,
            folder=model.folder,
            dtype=config.dtype,
            page_size=config.page_size,
            num_pages=config.num_pages,
            kv_memory=config.kv_memory if kv_memory is None else kv_memory[worker],
            max_running=config.max_running,
            max_model_len=model.max_model_len,
            step_tokens=config.step_tokens,
            quantization=config.quantization,
            batch_invariant=config.batch_invariant,
            num_threads=num_threads,
            emu_mode=config.emu_mode,
            emu_seed=config.emu_seed,
            counting_step_s=config.counting_step_s,
        )
        for worker, (index, rank, group) in enumerate(places)
    ]


def environment_of(worker: WorkerConfig) -> Mapping[str, str]:
    """Return what must be in a worker's environment before torch is imported there."""
    return {
        **OFFLINE,
        "OMP_WAIT_POLICY": "PASSIVE",  # a spinning team is several times slower beside one busy neighbour
        "OMP_NUM_THREADS": str(worker.num_threads),
        "MKL_NUM_THREADS": str(worker.num_threads),
        "NUMBA_NUM_THREADS": str(worker.num_threads),
    }
