from structlog.testing import capture_logs

from actors.node.children import worker_configs
from actors.node.config import resolve
from actors.node.peer_to_peer import unfit_groups
from protocol.model_info import ModelInfo

MODEL = ModelInfo(name="m", folder="/m", vocab_size=10, max_model_len=100, eos_token_ids=(1,))
WHY = "peer-to-peer is unfit, falling back: cuda:2 to cuda:3: lost writes"


def test_only_groups_of_gpus_are_asked_and_the_unfit_are_told_to_their_workers() -> None:
    topology = "mixed=cuda:0,cuda:1;mixed=cuda:2,cuda:3;mixed=emu:0,emu:1;mixed=cuda:4"
    config = resolve(["--topology", topology], {}).config
    answers: dict[tuple[str, ...], str | None] = {("cuda:0", "cuda:1"): None, ("cuda:2", "cuda:3"): WHY}
    with capture_logs() as logs:
        unfit = unfit_groups(config, lambda devices: answers.pop(tuple(devices)))
    assert answers == {}
    assert [(line["event"], line["log_level"], line["group"]) for line in logs] == [(WHY, "warning", 1)]
    workers = worker_configs(config, MODEL, unfit=unfit)
    assert [worker.device_config().peer_to_peer for worker in workers] == [True, True, False, False, True, True, True]
