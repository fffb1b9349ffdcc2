from client import Result
from client.chat import AnswerStats
from protocol.messages import Timing, Usage


def test_all_figures_are_shown_after_an_answer_that_ended() -> None:
    result = Result(
        request_id="1",
        num_tokens=11,
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, cached_tokens=3, completion_tokens=11),
        timing=Timing(queue_ms=1.0, ttft_ms=20.0, tpot_ms=10.0, total_ms=120.0),
    )
    shown = AnswerStats(result=result, ttft_s=0.5, total_s=1.5).full().splitlines()
    assert shown[0] == "11 tokens · 10.0 tok/s · TTFT 500 ms"
    assert shown[1] == "prompt    5 tokens, 3 of them from the prefix cache"
    assert shown[3] == "server    TTFT 20.0 ms, TPOT 10.0 ms, total 120.0 ms"


def test_a_broken_off_answer_shows_no_figure_that_the_server_never_told() -> None:
    stats = AnswerStats(result=Result(request_id="1", num_tokens=3, finish_reason="cancelled"), ttft_s=0.5, total_s=1.5)
    assert stats.full() == stats.footer() == "3 tokens · 2.0 tok/s · TTFT 500 ms · cancelled"
