"""The stream by itself: order, sizes and ends of its events."""

import pytest

from actors.ingress.stream import MAX_FRAME_TOKENS, Stream
from actors.ingress.text import OutputText, TextModel
from protocol.errors import PartFailed
from protocol.messages import RequestFailed, RequestFinished, Submit, Timing, TokenDelta, Usage
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.step import TokenLogprob
from protocol.wire import Accepted, Failed, Finished, SessionEvent, Tokens
from tests.actors.ingress.byte_model import tokens_of

FINISHED = RequestFinished(1, "length", Usage(1, 0, 99), Timing())


@pytest.fixture(scope="session")
def text(model: ModelInfo) -> TextModel:
    return TextModel.load(model.folder)


def opened(
    text: TextModel, *, stop: tuple[str, ...] = (), resumed: str | list[int] = "", logprobs: int | None = None
) -> Stream:
    sampling = SamplingParams(max_tokens=10_000, logprobs=logprobs)
    held = tokens_of(resumed) if isinstance(resumed, str) else resumed
    submit = Submit(request=1, prompt_tokens=[1], output_tokens=held, sampling=sampling)
    stream = Stream(submit, OutputText(text, stop=stop), chr, client_id="a", return_tokens=True)
    stream.listen(lambda _: None)
    return stream


def push(stream: Stream, output: str, index: int) -> bool:
    tokens = tokens_of(output)
    logprobs = [] if stream.submit.sampling.logprobs is None else [TokenLogprob(token, -1.0) for token in tokens]
    return stream.push(TokenDelta(1, index, tokens, logprobs))


def take_all(stream: Stream) -> list[SessionEvent]:
    events = stream.take_events()
    while stream.is_dirty:
        events += stream.take_events()
    return events


def test_the_order_is_accepted_tokens_terminal(text: TextModel) -> None:
    stream = opened(text)
    stream.accept()
    push(stream, "hi", 0)
    stream.finish(FINISHED)
    assert [type(event) for event in take_all(stream)] == [Accepted, Tokens, Finished]


def test_listeners_hear_once_until_events_are_taken(text: TextModel) -> None:
    heard: list[Stream] = []
    stream = opened(text)
    stream.listen(heard.append)
    push(stream, "a", 0)
    push(stream, "b", 1)
    assert heard == [stream]
    stream.take_events()
    push(stream, "c", 2)
    assert heard == [stream, stream]


@pytest.mark.parametrize("logprobs", [None, 0])
def test_what_has_waited_comes_in_frames_of_bounded_size(text: TextModel, logprobs: int | None) -> None:
    stream = opened(text, logprobs=logprobs)
    for index in range(1000):
        push(stream, "abcdefghij"[index % 10], index)
    assert stream.backlog_bytes >= 1000 * 200
    stream.finish(FINISHED)
    *frames, last = take_all(stream)
    assert isinstance(last, Finished)
    assert stream.backlog_bytes == 0
    position = 0
    for frame in frames:
        assert isinstance(frame, Tokens)
        assert frame.index == position
        assert frame.count == len(frame.text) == len(frame.tokens or ()) <= MAX_FRAME_TOKENS
        if logprobs is not None:
            assert [one.token for one in frame.logprobs or ()] == frame.tokens
        position += frame.count
    assert position == 1000


def test_usage_counts_to_the_stop_string_whatever_the_scheduler_says(text: TextModel) -> None:
    stream = opened(text, stop=("b",))
    assert push(stream, "ab", 0)
    assert not push(stream, "cd", 2)
    stream.finish(FINISHED)
    tokens, finished = take_all(stream)
    assert isinstance(tokens, Tokens)
    assert isinstance(finished, Finished)
    assert (tokens.text, tokens.count) == ("a", 2)
    assert (finished.reason, finished.stop, finished.usage.completion_tokens) == ("stop", "b", 2)


def test_a_stop_string_that_is_certain_only_at_the_end_is_found(text: TextModel) -> None:
    stream = opened(text, stop=("�",))
    stream.push(TokenDelta(1, 0, tokens_of("aé")[:2]))
    stream.finish(FINISHED)
    finished = take_all(stream)[-1]
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.stop) == ("stop", "�")


@pytest.mark.parametrize("num_held", range(1, 6))
@pytest.mark.parametrize("together", [True, False])
def test_resumed_tokens_that_end_in_half_a_character_are_not_sent_again_but_its_text_is(
    text: TextModel, num_held: int, *, together: bool
) -> None:
    whole = tokens_of("a😀b")
    stream = opened(text, resumed=whole[:num_held], logprobs=0)
    rest = whole[num_held:]
    for index, token in [(num_held, rest)] if together else [(num_held + i, [one]) for i, one in enumerate(rest)]:
        stream.push(TokenDelta(1, index, token, [TokenLogprob(one, -1.0) for one in token]))
    stream.finish(FINISHED)
    frames = [event for event in take_all(stream) if isinstance(event, Tokens)]
    assert frames[0].index == num_held
    assert [token for frame in frames for token in frame.tokens or ()] == rest
    assert [one.token for frame in frames for one in frame.logprobs or ()] == rest
    assert "".join(frame.text for frame in frames) == ("b" if num_held == 5 else "😀b")


def test_text_of_resumed_tokens_alone_comes_with_the_next_token(text: TextModel) -> None:
    stream = opened(text, stop=("abc",), resumed="xab")
    push(stream, "d", 3)
    (frame,) = take_all(stream)
    assert isinstance(frame, Tokens)
    assert (frame.index, frame.count, frame.text) == (3, 1, "abd")
    broken = opened(text, resumed=tokens_of("😀")[:2])
    push(broken, "b", 2)
    assert "".join(event.text for event in take_all(broken) if isinstance(event, Tokens)).endswith("b")


def test_resumed_tokens_are_not_sent_again(text: TextModel) -> None:
    stream = opened(text, resumed="abc")
    push(stream, "d", 3)
    (tokens,) = stream.take_events()
    assert isinstance(tokens, Tokens)
    assert (tokens.index, tokens.text) == (3, "d")


def test_repeated_tokens_are_dropped_and_missing_ones_stop_the_part(text: TextModel) -> None:
    stream = opened(text)
    push(stream, "ab", 0)
    push(stream, "abc", 0)
    (tokens,) = stream.take_events()
    assert isinstance(tokens, Tokens)
    assert tokens.text == "abc"
    with pytest.raises(PartFailed, match="token 5 came, but 3 was next"):
        push(stream, "x", 5)


def test_a_failure_comes_after_the_tokens_before_it(text: TextModel) -> None:
    stream = opened(text)
    push(stream, "a", 0)
    stream.fail(RequestFailed(1, "internal", "broken"))
    tokens, failed = take_all(stream)
    assert isinstance(tokens, Tokens)
    assert failed == Failed(id="a", code="internal", message="broken")
    assert not push(stream, "b", 1)
