"""What the node tells its children survives the way to them, for any settings that it accepts."""

import msgspec
import pytest

from actors.node.children import (
    AnySpec,
    IngressSpec,
    Place,
    SchedulerSpec,
    WorkerSpec,
    environment_of,
    grouped_worker_names,
    worker_configs,
)
from actors.node.config import resolve
from protocol.model_info import ModelInfo

MODEL = ModelInfo(name="m", folder="/m", vocab_size=10, max_model_len=100, eos_token_ids=(1,))
PLACE = Place("/run/x", 1, "uvloop", "info", "json")
EXTREMES = (
    ["--kv-memory", "900GiB", "--max-message-bytes", "1GiB", "--resume-ttl", "24h", "--drain-timeout", "24h"],
    [
        "--num-pages",
        "2147483647",
        "--max-running",
        "4096",
        "--step-tokens",
        "2147483647",
        "--max-waiting",
        "2147483647",
    ],
    ["--max-running", "1", "--page-size", "1", "--step-tokens", "1", "--max-message-bytes", "1024", "--api-key", "k"],
)


@pytest.mark.parametrize("flags", EXTREMES)
def test_every_accepted_setting_reaches_the_children(flags: list[str]) -> None:
    config = resolve(flags, {}).config
    specs = (
        SchedulerSpec(PLACE, config.scheduler, MODEL, (1,)),
        IngressSpec(PLACE, config.ingress, MODEL, 1, 7),
        *(WorkerSpec(PLACE, worker) for worker in worker_configs(config, MODEL)),
    )
    for spec in specs:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=AnySpec) == spec


def test_workers_share_the_cores_and_each_has_its_group() -> None:
    config = resolve(["--topology", "mixed=cpu:0;mixed=cpu:1"], {}).config
    workers = worker_configs(config, MODEL, num_cores=5)
    assert [(worker.index, worker.group, worker.device, worker.device_config.num_threads) for worker in workers] == [
        (0, "0", "cpu:0", 2),
        (1, "1", "cpu:1", 2),
    ]
    assert [worker.device_config.num_threads for worker in worker_configs(config, MODEL, num_cores=1)] == [1, 1]


def test_ranks_know_their_place_and_cpu_ranks_keep_to_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "actors.node.children.core_shares", lambda count: [(2 * index, 2 * index + 1) for index in range(count)]
    )
    config = resolve(["--topology", "mixed=cpu:0,cpu:1;mixed=cpu:2", "--peer-timeout", "2s"], {}).config
    workers = worker_configs(config, MODEL, num_cores=6)
    devices = [worker.device_config for worker in workers]
    assert [(worker.index, worker.group) for worker in workers] == [(0, "0"), (1, "0"), (2, "1")]
    assert [(device.rank, device.world_size) for device in devices] == [(0, 2), (1, 2), (0, 1)]
    assert [worker.cores for worker in workers] == [(0, 1), (2, 3), ()]
    assert [worker.device_config.num_threads for worker in workers] == [2, 2, 2]
    device = workers[1].device_config
    assert (device.rank, device.world_size, device.peer_timeout_s) == (1, 2, 2.0)
    assert config.scheduler.peer_timeout_s == 2.0


def test_devices_that_are_no_cpu_keep_to_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.node.children.core_shares", lambda count: [(index,) for index in range(count)])
    config = resolve(["--devices", "counting:0,counting:1", "--tp", "2"], {}).config
    assert [worker.cores for worker in worker_configs(config, MODEL)] == [(), ()]


def test_a_worker_does_not_spin_for_work_and_asks_no_hub() -> None:
    worker = worker_configs(resolve([], {}).config, MODEL, num_cores=3)[0]
    environment = environment_of(worker)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_how_the_emulator_runs_reaches_its_workers() -> None:
    config = resolve(["--devices", "emu:1", "--emu-mode", "check", "--emu-seed", "7"], {}).config
    (worker,) = worker_configs(config, MODEL)
    assert (worker.device, worker.simulated.emu_mode, worker.simulated.emu_seed) == ("emu:1", "check", 7)


def test_workers_are_numbered_through_group_by_group() -> None:
    assert grouped_worker_names((2, 1)) == [["worker:0", "worker:1"], ["worker:2"]]
