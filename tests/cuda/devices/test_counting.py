from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from cuda.devices.counting import CountingDevice, expected_output
from cuda.devices.device import DeviceConfig
from protocol.sampling import SamplingParams
from protocol.step import RowStart, StepPlan, StepRow

VOCAB_SIZE = 1000
PROMPT = [5, 6, 7, 8, 9]
GREEDY = SamplingParams(max_tokens=8, seed=1)


def make(num_pages: int | None = 8, *, folder: str = "", vocab_size: int | None = VOCAB_SIZE) -> CountingDevice:
    config = DeviceConfig(
        folder=folder,
        dtype="auto",
        page_size=2,
        num_pages=num_pages,
        kv_memory=160,
        max_running=2,
        max_model_len=16,
        max_step_tokens=16,
        quantization="none",
        batch_invariant=False,
        num_threads=1,
        peer_timeout_s=10.0,
    )
    device = CountingDevice(config, vocab_size=vocab_size)
    device.load(lambda _: None)
    return device


def start(slot: int = 0, tokens: list[int] = PROMPT, sampling: SamplingParams = GREEDY) -> RowStart:
    return RowStart(slot, 40 + slot, 1, tokens, len(tokens), sampling)


def run(device: CountingDevice, *rows: StepRow, starts: list[RowStart] | None = None) -> list[int]:
    return [row.token for row in device.execute(StepPlan(1, 0, starts or [], list(rows))).rows]


def test_a_token_is_the_checksum_of_positions_and_tokens_before_it() -> None:
    entries = b"".join((position << 32 | token).to_bytes(8, "little") for position, token in enumerate(PROMPT))
    first = crc32(entries) % VOCAB_SIZE
    second = crc32(entries + (5 << 32 | first).to_bytes(8, "little")) % VOCAB_SIZE
    assert expected_output(PROMPT, 2, VOCAB_SIZE) == [first, second]


def test_chunks_then_decodes_give_the_expected_tokens() -> None:
    device = make()
    assert run(device, StepRow(0, 0, 3, False, (4, 1)), starts=[start()]) == []
    tokens = run(device, StepRow(0, 3, 2, True, (7,)))
    tokens += run(device, StepRow(0, 5, 1, True))
    tokens += run(device, StepRow(0, 6, 1, True, (2,)))
    assert tokens == expected_output(PROMPT, 3, VOCAB_SIZE)


def test_a_shared_prefix_is_read_through_the_page_table() -> None:
    device = make()
    run(device, StepRow(0, 0, 5, True, (0, 1, 2)), starts=[start()])
    other = [*PROMPT[:4], 50]
    tokens = run(device, StepRow(1, 4, 1, True, (0, 1, 3)), starts=[start(1, other)])
    assert tokens == expected_output(other, 1, VOCAB_SIZE)


@pytest.mark.parametrize("pages", [(1, 0, 2), (0, 5, 2), (0, 0, 2)])
def test_a_wrong_page_shows_as_a_wrong_token(pages: tuple[int, ...]) -> None:
    device = make()
    run(device, StepRow(0, 0, 5, True, (0, 1, 2)), starts=[start()])
    tokens = run(device, StepRow(1, 4, 1, True, pages), starts=[start(1)])
    assert tokens != expected_output(PROMPT, 1, VOCAB_SIZE)


@pytest.mark.parametrize(
    "row",
    [
        StepRow(0, 4, 2, False),  # past the tokens
        StepRow(0, 3, 1, True),  # samples before the last token
        StepRow(0, 2, 1, False),  # computed already
        StepRow(0, 4, 1, False),  # leaves a hole
        StepRow(0, 3, 0, False),  # nothing
    ],
)
def test_a_plan_that_breaks_the_rules_is_refused(row: StepRow) -> None:
    device = make()
    run(device, StepRow(0, 0, 3, False, (0, 1, 2)), starts=[start()])
    with pytest.raises(ValueError, match="slot 0"):
        run(device, row)


def test_a_row_without_a_page_for_its_tokens_is_refused() -> None:
    device = make()
    with pytest.raises(ValueError, match="2 pages"):
        run(device, StepRow(0, 0, 5, True, (0, 1)), starts=[start()])


def test_logprobs_are_there_when_asked_for() -> None:
    device = make()
    sampling = SamplingParams(max_tokens=8, seed=1, logprobs=1)
    result = device.execute(StepPlan(1, 0, [start(sampling=sampling)], [StepRow(0, 0, 5, True, (0, 1, 2))]))
    logprob = result.rows[0].logprob
    assert logprob is not None
    assert logprob.token == result.rows[0].token
    assert len(logprob.top) == 1


def test_the_pool_is_sized_by_pages_or_bytes_and_the_vocabulary_read_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 77}')
    device = make(None, folder=str(tmp_path), vocab_size=None)
    assert device.load(lambda _: None).num_pages == 10  # 160 bytes, 16 a page
    assert run(device, StepRow(0, 0, 5, True, (0, 1, 2)), starts=[start()]) == expected_output(PROMPT, 1, 77)


def test_ranks_of_a_group_know_each_other_by_handles_in_rank_order() -> None:
    alone = make()
    assert alone.export() == b""
    alone.open_peers([b""])
    ranks = [CountingDevice(replace(alone._config, rank=rank, world_size=2), vocab_size=99) for rank in range(2)]
    handles = [rank.export() for rank in ranks]
    ranks[1].open_peers(handles)
    with pytest.raises(ValueError, match="expected"):
        ranks[0].open_peers(handles[::-1])


def test_the_work_of_a_step_is_part_of_the_time_it_is_asked_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    slept: list[float] = []

    def read_clock() -> float:
        nonlocal now
        now += 0.25
        return now

    monkeypatch.setattr("time.perf_counter", read_clock)
    monkeypatch.setattr("time.sleep", slept.append)
    device = CountingDevice(make()._config, 1.0, vocab_size=VOCAB_SIZE)
    device.load(lambda _: None)
    device.execute(StepPlan(1, 0, [start()], [StepRow(0, 0, 5, True, (4, 1, 7))]))
    assert slept == [0.75]
