"""What the node tells its children survives the way to them, for any settings that it accepts."""

import msgspec
import pytest

from actors.node.children import AnySpec, IngressSpec, SchedulerSpec, WorkerSpec, grouped_worker_names
from actors.node.config import ProcessConfig, resolve
from actors.node.sharing import worker_configs
from protocol.model_info import ModelInfo

MODEL = ModelInfo(name="m", folder="/m", vocab_size=10, max_model_len=100, eos_token_ids=(1,))
PLACE = ("/run/x", 1, ProcessConfig())
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
        SchedulerSpec(*PLACE, config.scheduler, MODEL, (1,)),
        IngressSpec(*PLACE, config.ingress, MODEL, 1, 7),
        *(WorkerSpec(*PLACE, worker) for worker in worker_configs(config, MODEL)),
    )
    for spec in specs:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=AnySpec) == spec


def test_workers_are_numbered_through_group_by_group() -> None:
    assert grouped_worker_names((2, 1)) == [["worker:0", "worker:1"], ["worker:2"]]
