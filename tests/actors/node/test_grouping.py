"""From a configuration and a model to groups; the devices' figures are given, but for one test.

Then the measuring process as the node sees it: it answers, fails in a line, or is ended.
"""

import subprocess
import sys

import msgspec
import pytest
from structlog.testing import capture_logs

from actors.node.config import NodeConfig, resolve
from actors.node.devices import Group
from actors.node.grouping import TrialError, choose_groups, compare, printed_plan, run_trial, table
from actors.node.prediction import Candidate, Room
from cuda.check.trials.trial import Pace, Trial, TrialResult
from cuda.models.folder import read_model_info
from protocol.model_info import ModelInfo
from tests.cuda.models.tiny import tiny_model

TRIAL = Trial(
    kind="cpu", devices=(0, 1), folder="/model", dtype="auto", quantization="none", rows=8, hidden_size=64,
    sizes=(1, 2), values=(10, 5),
)  # fmt: skip
RESULT = TrialResult((Pace(1, 1e-9), Pace(2, 2e-9, 1e-6, 1e9)), 4, 1000)
ROOM = Room(100 << 20, 4096, "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return read_model_info(tiny_model(tmp_path_factory.mktemp("models")), "tiny", None)


def config(*flags: str) -> NodeConfig:
    return resolve(flags, {}).config


class Measured:
    """Answers trials with a pace for each size."""

    def __init__(self, *value_s: float) -> None:
        self.value_s = value_s
        self.trials: list[Trial] = []

    def __call__(self, trial: Trial) -> TrialResult:
        self.trials.append(trial)
        paces = [Pace(size, value_s) for size, value_s in zip(trial.sizes, self.value_s, strict=True)]
        return TrialResult(tuple(paces), 2, 2 << 30)


def measured(monkeypatch: pytest.MonkeyPatch, *value_s: float) -> Measured:
    found = Measured(*value_s)
    monkeypatch.setattr("actors.node.grouping.run_trial", found)
    return found


def fails(_trial: Trial) -> TrialResult:
    raise TrialError("no luck")


FOUR = ("--devices", "cpu:3,cpu:1,cpu:0,cpu:2")


def test_devices_that_a_group_leaves_over_are_replicas(monkeypatch: pytest.MonkeyPatch, model: ModelInfo) -> None:
    measured(monkeypatch, 4e-9, 1e-9, 4e-9)
    with capture_logs() as lines:
        chosen = choose_groups(config(*FOUR), model)
    assert chosen.groups == (Group("mixed", ("cpu:3", "cpu:1")), Group("mixed", ("cpu:0", "cpu:2")))
    assert [(line["event"], line["tp"]) for line in lines] == [("tensor-parallel size chosen", 2)]
    assert "predicted" in lines[0]["reason"]


def test_the_devices_are_tried_as_the_workers_will_use_them(monkeypatch: pytest.MonkeyPatch, model: ModelInfo) -> None:
    monkeypatch.setattr("actors.node.grouping.core_shares", lambda number: [(core,) for core in range(number)])
    monkeypatch.setattr("actors.node.grouping.usable_cores", lambda: 8)
    asked = measured(monkeypatch, 1e-9, 1e-9, 1e-9)
    compare(config(*FOUR, "--quantization", "int8"), model)
    (trial,) = asked.trials
    assert (trial.kind, trial.devices, trial.sizes) == ("cpu", (3, 1, 0, 2), (1, 2, 4))
    assert (trial.cores, trial.num_threads) == (((0,), (1,), (2,), (3,)), 2)
    assert (trial.folder, trial.quantization, trial.hidden_size) == (model.folder, "int8", 64)
    assert trial.values[0] > trial.values[1] > trial.values[2]


def test_sizes_at_which_a_rank_would_hold_nothing_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, model: ModelInfo
) -> None:
    asked = measured(monkeypatch, 1e-9)
    plan = compare(config("--devices", "cpu:0,cpu:1,cpu:2,cpu:3,cpu:4"), model)  # of 4 query heads
    assert asked.trials[0].sizes == (1,)
    assert plan.choice.size == 1


def test_gpus_are_judged_by_their_own_memory(monkeypatch: pytest.MonkeyPatch, model: ModelInfo) -> None:
    asked = measured(monkeypatch, 2e-9, 1e-9)
    one, _ = compare(config("--devices", "cuda:0,cuda:1"), model).candidates
    assert (asked.trials[0].kind, asked.trials[0].cores) == ("cuda", ())
    assert one.room is not None
    assert one.room.kv_tokens == 256 * 512  # of the 1 GiB that is not reserved, all that 256 requests can use
    short = compare(config("--devices", "cuda:0,cuda:1", "--kv-memory", "2GiB"), model).candidates[0]
    assert short.hindrance == "needs 3.0 of 2.0 GiB"


def test_when_nothing_can_be_measured_the_smallest_that_fits_serves(
    monkeypatch: pytest.MonkeyPatch, model: ModelInfo
) -> None:
    monkeypatch.setattr("actors.node.grouping.run_trial", fails)
    with capture_logs() as lines:
        chosen = choose_groups(config("--devices", "cpu:0,cpu:1"), model)
    assert [group.size for group in chosen.groups] == [1, 1]
    assert lines[0]["log_level"] == "warning"
    assert lines[0]["reason"] == "no luck"


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ("emu:0,emu:1", "emu devices are for tests"),
        ("counting:0,counting:1", "counting devices are for tests"),
        ("cpu:0,counting:1", "several kinds"),
    ],
)
def test_devices_whose_times_say_nothing_are_replicas(
    monkeypatch: pytest.MonkeyPatch, model: ModelInfo, devices: str, reason: str
) -> None:
    monkeypatch.setattr("actors.node.grouping.run_trial", fails)
    assert reason in printed_plan(config("--devices", devices), model).splitlines()[-1]
    assert [group.size for group in choose_groups(config("--devices", devices), model).groups] == [1, 1]


@pytest.mark.parametrize(
    ("flags", "stars", "words"),
    [
        (FOUR, [2], "tp 2: its step of 8 rows is predicted"),
        ((*FOUR, "--tp", "4"), [4], "tp 4: as the settings say"),
        (("--topology", "mixed=cpu:0,cpu:1;mixed=cpu:2;mixed=cpu:3"), [1, 2], "tp 2,1: as the settings say"),
    ],
)
def test_the_printed_plan_marks_the_sizes_in_use(
    monkeypatch: pytest.MonkeyPatch, model: ModelInfo, flags: tuple[str, ...], stars: list[int], words: str
) -> None:
    measured(monkeypatch, 4e-9, 1e-9, 4e-9)
    *lines, last = printed_plan(config(*flags), model).splitlines()
    assert [int(line.split()[1]) for line in lines if line.startswith("*")] == stars
    assert last.startswith(words)


def test_a_single_device_can_be_looked_at(monkeypatch: pytest.MonkeyPatch, model: ModelInfo) -> None:
    measured(monkeypatch, 1e-9)
    assert printed_plan(config("--devices", "cpu"), model).endswith("tp 1: there is one device")


def test_a_start_without_a_choice_does_not_even_import_this() -> None:
    code = "import sys, actors.node.__main__; sys.exit('actors.node.grouping' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_devices_are_measured(model: ModelInfo) -> None:
    plan = compare(config("--devices", "cpu:0,cpu:1"), model)
    assert [candidate.size for candidate in plan.candidates] == [1, 2]
    assert all(candidate.step_s for candidate in plan.candidates)


def test_the_table_shows_what_was_compared() -> None:
    tried = [
        Candidate(1, 2, "needs 15.0 of 10.0 GiB", ROOM, 0.01, 0.0),
        Candidate(2, 1, "", Room(50 << 20, 81_920, ""), 0.005, 0.00025),
    ]
    assert table(tried, {2}).splitlines() == [
        "   tp  groups  fits  weights/rank  KV tokens/group  compute ms  exchange ms  step ms",
        "    1       2    no       100 MiB            4,096      10.000        0.000   10.000  needs 15.0 of 10.0 GiB",
        "*   2       1   yes        50 MiB           81,920       5.000        0.250    5.250",
    ]


def test_the_table_says_what_is_not_known() -> None:
    assert table([Candidate(1, 2), Candidate(2, 1)], {1}).splitlines()[1].split() == [*"*12?", *"-----"]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_result_comes_back() -> None:
    code = f"import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write({msgspec.msgpack.encode(RESULT)!r})"
    assert run_trial(TRIAL, command=python(code)) == RESULT


def test_what_is_to_be_measured_arrives() -> None:
    code = "import sys; sys.exit(sys.stdin.buffer.read().hex())"
    with pytest.raises(TrialError) as caught:
        run_trial(TRIAL, command=python(code))
    assert msgspec.msgpack.decode(bytes.fromhex(str(caught.value)), type=Trial) == TRIAL


def test_a_failure_is_told_by_its_last_line() -> None:
    with pytest.raises(TrialError, match=r"^ValueError: no such thing$"):
        run_trial(TRIAL, command=python("raise ValueError('no such thing')"))


def test_a_silent_death_is_told_by_its_code() -> None:
    with pytest.raises(TrialError, match="ended with -9"):
        run_trial(TRIAL, command=python("import os; os.kill(os.getpid(), 9)"))


def test_one_that_hangs_is_ended() -> None:
    with pytest.raises(TrialError, match="not done after"):
        run_trial(TRIAL, command=python("import signal; signal.pause()"), limit_s=0.2)
