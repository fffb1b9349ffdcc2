import numpy as np
import pytest

from client.bench.metrics import RequestRecord, measure, percentile, report


def record(*, sent: float, arrivals: list[tuple[float, int]], output_tokens: int, end: float) -> RequestRecord:
    made = RequestRecord(sent_at=sent, input_tokens=10, output_tokens=output_tokens, ended_at=end)
    for moment, count in arrivals:
        made.tokens_arrived(count, moment)
    return made


def test_latencies_of_one_request_are_what_a_stopwatch_shows() -> None:
    one = record(sent=1.0, arrivals=[(1.5, 1), (1.75, 1), (2.5, 2)], output_tokens=4, end=2.75)
    assert one.ttft_ms == 500
    assert one.tpot_ms == pytest.approx(1000 / 3)  # 1 s for the three tokens after the first
    assert one.e2el_ms == 1750
    assert one.gaps_s == [0.25, 0.75, 0.0]


def test_tpot_counts_tokens_whatever_the_frames() -> None:
    single = record(sent=0, arrivals=[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)], output_tokens=5, end=5)
    bundled = record(sent=0, arrivals=[(1, 1), (3, 2), (5, 2)], output_tokens=5, end=5)
    assert single.tpot_ms == bundled.tpot_ms == 1000
    assert record(sent=0, arrivals=[(1, 1)], output_tokens=1, end=1).tpot_ms is None


def test_goodput_is_taken_over_offered_requests() -> None:
    good = record(sent=0, arrivals=[(0.1, 1), (0.2, 1)], output_tokens=2, end=0.2)
    slow = record(sent=0, arrivals=[(0.9, 1), (1.0, 1)], output_tokens=2, end=1.0)
    refused, broken = RequestRecord(sent_at=0), RequestRecord(sent_at=0)
    refused.failed("overloaded", "full", 0.1)
    broken.failed("internal", "broken", 0.1)
    figures = measure([good, slow, refused, broken], duration_s=2.0, goals={"ttft": 200, "tpot": 150})
    assert figures["goodput_ratio"] == 0.25
    assert figures["request_goodput"] == 0.5
    assert (figures["offered"], figures["completed"], figures["refused"], figures["failed"]) == (4, 2, 1, 1)
    assert figures["request_throughput"] == 1.0
    assert figures["output_throughput"] == 2.0
    assert figures["total_token_throughput"] == 12.0


@pytest.mark.parametrize("percent", [0, 50, 90, 99, 100])
def test_percentiles_are_numpys(percent: int) -> None:
    values = sorted([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([7.0], percent) == 7.0


def test_the_report_has_a_line_for_each_figure_that_was_asked_for() -> None:
    one = record(sent=0, arrivals=[(0.1, 1), (0.2, 1)], output_tokens=2, end=0.25)
    lines = report(measure([one], duration_s=1.0, goals={})).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     1" in lines
    assert "Output token throughput (tok/s):         2.00" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "P99 E2EL (ms):                           250.00" in lines
    assert not [line for line in lines if "goodput" in line]
    assert {len(line) for line in lines if line.startswith("=")} == {50}


def test_a_run_in_which_nothing_succeeded_still_has_figures() -> None:
    refused = RequestRecord(sent_at=0)
    refused.failed("overloaded", "full", 0.1)
    assert measure([refused], duration_s=1.0, goals={})["p99_ttft_ms"] == 0
