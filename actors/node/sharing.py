"""How model and machine are shared out over the workers: what cannot be is refused before any of them starts.

What a shard is: `cuda.models.shard`. Counting devices have no model to share out. GPUs of a group prove that they reach
each other's memory, pair by pair and by a sum (`cuda.check.peers.proof`); where they do not, they exchange through
the library, which is slower.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog

from actors.node.config import NodeConfig
from actors.node.devices import Group, core_shares, usable_cores
from actors.node.settings import ConfigError
from actors.worker.config import WorkerConfig
from cuda.check.peers.proof import prove, prove_sum, verdict
from cuda.devices.device import DeviceConfig
from cuda.models.folder import read_spec
from cuda.models.kv import KvLayout, available_memory
from cuda.models.shard import describe, split
from cuda.models.spec import ModelSpec, UnsupportedModel
from protocol.model_info import ModelInfo

OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}
"""Models are local: a look-up at the hub would only hang."""
log = structlog.get_logger()


def check_groups(config: NodeConfig, model: ModelInfo) -> None:
    """Show how the model is shared out. Raises ConfigError if a rank would hold nothing, or a pool cannot be."""
    spec = read_spec(Path(model.folder))
    show(config, spec)
    _check_pools(config, spec)


def show(config: NodeConfig, spec: ModelSpec) -> None:
    """Log what each rank of a group of several holds. Raises ConfigError if one would hold nothing."""
    try:
        lines = [(index, text) for index, group in _shared(config) for text in describe(split(spec, group.size))]
    except UnsupportedModel as error:
        raise ConfigError(f"--tp: {error}; use fewer devices in a group") from None
    for index, text in lines:
        log.info(text, group=index)


def kv_memory(config: NodeConfig, spec: ModelSpec) -> list[int | None]:
    """Return the bytes of each worker's part of its group's KV pool, by its KV heads; None where nobody said."""
    given = config.device.kv_memory
    by_worker: list[int | None] = [given] * len(config.devices)
    if given is None:
        return by_worker
    for index, group in _shared(config):
        first = sum(earlier.size for earlier in config.groups[:index])
        parts = page_bytes(config, spec, group.size)
        by_worker[first : first + group.size] = [given * part // sum(parts) for part in parts]
    return by_worker


def page_bytes(config: NodeConfig, spec: ModelSpec, world_size: int) -> list[int]:
    """Return the bytes of a KV page on each rank."""
    parts = [shard.spec(spec) for shard in split(spec, world_size)]
    return [KvLayout.of(local, config.device.page_size, item_bytes(config)).page_bytes for local in parts]


def item_bytes(config: NodeConfig) -> int:
    """Return the bytes of a value in the KV pool, as far as the settings say."""
    return 2 if config.device.dtype == "bfloat16" else 4


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
    settings = asdict(config.device)
    places = [(index, rank, group) for index, group in enumerate(config.groups) for rank in range(group.size)]
    return [
        WorkerConfig(
            index=worker,
            group=str(index),
            model_name=model.name,
            device=group.devices[rank],
            device_config=DeviceConfig(
                **settings if kv_memory is None else {**settings, "kv_memory": kv_memory[worker]},
                folder=model.folder,
                max_running=config.scheduler.max_running,
                max_model_len=model.max_model_len,
                max_step_tokens=config.scheduler.step_tokens,
                num_threads=num_threads,
                rank=rank,
                world_size=group.size,
                peer_timeout_s=config.scheduler.peer_timeout_s,
                peer_to_peer=index not in unfit,
            ),
            cores=shares[worker] if group.size > 1 and group.devices[rank].startswith("cpu") else (),
            simulated=config.simulated,
        )
        for worker, (index, rank, group) in enumerate(places)
    ]


def environment_of(worker: WorkerConfig) -> Mapping[str, str]:
    """Return what must be in a worker's environment before torch is imported there."""
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {
        **OFFLINE,
        **dict.fromkeys(libraries, str(worker.device_config.num_threads)),
        "OMP_WAIT_POLICY": "PASSIVE",  # a spinning team is several times slower beside one busy neighbour
    }


def hindrance_of(devices: Sequence[str]) -> str | None:
    """Return None if all GPUs of a group reach each other's memory, else the line that says why not."""
    return verdict(prove(devices)) or prove_sum(devices)


def unfit_groups(
    config: NodeConfig, hindrance_of: Callable[[Sequence[str]], str | None] = hindrance_of
) -> frozenset[int]:
    """Return which groups of GPUs cannot exchange through each other's memory, each logged with its reason."""
    unfit = set()
    for index, group in _shared(config):
        if group.devices[0].startswith("cuda") and (hindrance := hindrance_of(group.devices)) is not None:
            log.warning(hindrance, group=index)
            unfit.add(index)
    return frozenset(unfit)


def _check_pools(config: NodeConfig, spec: ModelSpec) -> None:
    """Refuse a pool that was asked for and holds no page, or does not fit into memory beside those of the others."""
    given_pages, given_bytes = config.device.num_pages, config.device.kv_memory
    groups = [group for group in config.groups if group.devices[0].startswith("cpu")]
    if not groups or (given_pages is None and given_bytes is None):
        return
    needed = max(sum(page_bytes(config, spec, group.size)) for group in groups)
    setting = "--num-pages" if given_bytes is None else "--kv-memory"
    num_pages = given_pages if given_bytes is None else given_bytes // needed
    if not num_pages:
        raise ConfigError(f"{setting}: {given_bytes} bytes hold no page; use {needed} or more")
    available = available_memory() // len(groups)
    if num_pages * needed > available:
        most = available // needed if given_bytes is None else available
        asked = f"{num_pages * needed:,} bytes for each KV pool"
        raise ConfigError(f"{setting}: {asked} are more than the free memory; use less than {most}")


def _shared(config: NodeConfig) -> Iterator[tuple[int, Group]]:
    """Index and group of those whose ranks hold a part of the model each."""
    return (
        (index, group)
        for index, group in enumerate(config.groups)
        if group.size > 1 and not group.devices[0].startswith("counting")
    )
