"""Sharing model and machine out over the workers, before any of them is started."""

import pytest
from structlog.testing import capture_logs

from actors.node import sharing
from actors.node.config import NodeConfig, resolve
from actors.node.settings import ConfigError
from actors.node.sharing import environment_of, worker_configs
from cuda.models.config import parse_spec
from protocol.model_info import ModelInfo

SPEC = parse_spec(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "vocab_size": 256,
    },
    (2,),
)
PAGE_BYTES_A_HEAD = 2 * 2 * 16 * 16 * 4  # layers, keys and values, slots, head size, bytes of a float32
MODEL = ModelInfo(name="m", folder="/m", vocab_size=10, max_model_len=100, eos_token_ids=(1,))
WHY = "peer-to-peer is unfit, falling back: cuda:2 to cuda:3: lost writes"


def config(*flags: str) -> NodeConfig:
    return resolve(flags, {}).config


def test_what_each_rank_holds_is_logged() -> None:
    with capture_logs() as lines:
        sharing.show(config("--topology", "mixed=cpu:0;mixed=cpu:1,cpu:2"), SPEC)
    assert [line["group"] for line in lines] == [1, 1, 1]
    assert "rank 0: query heads 0-3, KV heads 0-1" in lines[0]["event"]
    assert "rank 1: query heads 4-5, KV heads 2" in lines[1]["event"]


def test_a_rank_that_would_hold_nothing_is_refused() -> None:
    devices = ",".join(f"cpu:{index}" for index in range(7))
    with pytest.raises(
        ConfigError, match=r"^--tp: the model has 6 query heads: 7 ranks .*; use fewer devices"
    ) as caught:
        sharing.show(config("--devices", devices, "--tp", "7"), SPEC)
    assert "\n" not in str(caught.value)


def test_counting_devices_have_no_model_to_share_out() -> None:
    devices = ",".join(f"counting:{index}" for index in range(7))
    with capture_logs() as lines:
        sharing.show(config("--devices", devices, "--tp", "7"), SPEC)
    assert lines == []


def test_a_groups_kv_memory_is_shared_out_by_kv_heads_so_that_all_ranks_have_as_many_pages() -> None:
    given = 30 * PAGE_BYTES_A_HEAD + 1
    resolved = config("--topology", "mixed=cpu:0;mixed=cpu:1,cpu:2", "--kv-memory", str(given))
    parts = sharing.kv_memory(resolved, SPEC)
    assert parts == [given, 20 * PAGE_BYTES_A_HEAD, 10 * PAGE_BYTES_A_HEAD]
    assert sharing.page_bytes(resolved, SPEC, 2) == [2 * PAGE_BYTES_A_HEAD, PAGE_BYTES_A_HEAD]


def test_a_kv_head_that_several_ranks_hold_counts_for_each() -> None:
    resolved = config("--devices", "cpu:0,cpu:1,cpu:2,cpu:3", "--tp", "4")
    assert sharing.page_bytes(resolved, SPEC, 4) == [PAGE_BYTES_A_HEAD] * 4
    assert sharing.kv_memory(resolved, SPEC) == [None] * 4


def test_only_groups_of_gpus_are_asked_and_the_unfit_are_told_to_their_workers() -> None:
    topology = "mixed=cuda:0,cuda:1;mixed=cuda:2,cuda:3;mixed=emu:0,emu:1;mixed=cuda:4"
    resolved = resolve(["--topology", topology], {}).config
    answers: dict[tuple[str, ...], str | None] = {("cuda:0", "cuda:1"): None, ("cuda:2", "cuda:3"): WHY}
    with capture_logs() as logs:
        unfit = sharing.unfit_groups(resolved, lambda devices: answers.pop(tuple(devices)))
    assert answers == {}
    assert [(line["event"], line["log_level"], line["group"]) for line in logs] == [(WHY, "warning", 1)]
    workers = worker_configs(resolved, MODEL, unfit=unfit)
    assert [worker.device_config.peer_to_peer for worker in workers] == [True, True, False, False, True, True, True]


def test_workers_share_the_cores_and_each_has_its_group() -> None:
    resolved = resolve(["--topology", "mixed=cpu:0;mixed=cpu:1"], {}).config
    workers = worker_configs(resolved, MODEL, num_cores=5)
    assert [(worker.index, worker.group, worker.device, worker.device_config.num_threads) for worker in workers] == [
        (0, "0", "cpu:0", 2),
        (1, "1", "cpu:1", 2),
    ]
    assert [worker.device_config.num_threads for worker in worker_configs(resolved, MODEL, num_cores=1)] == [1, 1]


def test_ranks_know_their_place_and_cpu_ranks_keep_to_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "actors.node.sharing.core_shares", lambda count: [(2 * index, 2 * index + 1) for index in range(count)]
    )
    resolved = resolve(["--topology", "mixed=cpu:0,cpu:1;mixed=cpu:2", "--peer-timeout", "2s"], {}).config
    workers = worker_configs(resolved, MODEL, num_cores=6)
    devices = [worker.device_config for worker in workers]
    assert [(worker.index, worker.group) for worker in workers] == [(0, "0"), (1, "0"), (2, "1")]
    assert [(device.rank, device.world_size) for device in devices] == [(0, 2), (1, 2), (0, 1)]
    assert [worker.cores for worker in workers] == [(0, 1), (2, 3), ()]
    assert [worker.device_config.num_threads for worker in workers] == [2, 2, 2]
    device = workers[1].device_config
    assert (device.rank, device.world_size, device.peer_timeout_s) == (1, 2, 2.0)
    assert resolved.scheduler.peer_timeout_s == 2.0


def test_devices_that_are_no_cpu_keep_to_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.node.sharing.core_shares", lambda count: [(index,) for index in range(count)])
    resolved = resolve(["--devices", "counting:0,counting:1", "--tp", "2"], {}).config
    assert [worker.cores for worker in worker_configs(resolved, MODEL)] == [(), ()]


def test_a_worker_does_not_spin_for_work_and_asks_no_hub() -> None:
    worker = worker_configs(resolve([], {}).config, MODEL, num_cores=3)[0]
    environment = environment_of(worker)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_how_the_emulator_runs_reaches_its_workers() -> None:
    resolved = resolve(["--devices", "emu:1", "--emu-mode", "check", "--emu-seed", "7"], {}).config
    (worker,) = worker_configs(resolved, MODEL)
    assert (worker.device, worker.simulated.emu_mode, worker.simulated.emu_seed) == ("emu:1", "check", 7)
