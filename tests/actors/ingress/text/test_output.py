"""What is sent is whole, ordered and complete: compared with the tokenizer library's decoding of all tokens at once."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.ingress.text import OutputText, Piece, TextModel
from actors.ingress.text.output import StopString

any_examples = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pieces_of(output: OutputText, chunks: Sequence[Sequence[int]]) -> list[Piece]:
    pieces = [*(output.push(chunk) for chunk in chunks), output.finish()]
    return [piece for piece in pieces if piece is not None]


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def one_by_one(tokens: Sequence[int]) -> list[list[int]]:
    return [[token] for token in tokens]


def draw_chunks(data: st.DataObject, vocab_size: int) -> list[list[int]]:
    token = st.integers(0, vocab_size + 2)  # two ids that no token has
    return data.draw(st.lists(st.lists(token, max_size=5), max_size=25))


@any_examples
@given(st.data())
def test_the_pieces_join_to_the_decoding_of_all_tokens(any_model: TextModel, data: st.DataObject) -> None:
    chunks = draw_chunks(data, any_model.vocab_size)
    tokens = [token for chunk in chunks for token in chunk]
    pieces = pieces_of(OutputText(any_model), chunks)
    assert text_of(pieces) == any_model.decode(tokens)
    assert sum(piece.num_tokens for piece in pieces) == len(tokens)
    assert all(piece.num_tokens >= 1 for piece in pieces)


@any_examples
@given(st.data())
def test_what_a_client_holds_is_always_the_decoding_of_the_tokens_it_counted(
    any_model: TextModel, data: st.DataObject
) -> None:
    chunks = draw_chunks(data, any_model.vocab_size)
    stop = data.draw(st.lists(st.sampled_from(["the end", "ab", " ", "日x", "é."]), max_size=2))
    tokens = [token for chunk in chunks for token in chunk]
    held, counted = "", 0
    for piece in pieces_of(OutputText(any_model, stop=stop), chunks):
        held, counted = held + piece.text, counted + piece.num_tokens
        if piece.stop is None:
            assert held == any_model.decode(tokens[:counted])
        else:
            assert any_model.decode(tokens[:counted]).startswith(held + piece.stop)


def test_tokens_of_the_demo_model_join_to_their_decoding(demo: TextModel) -> None:
    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, demo.vocab_size), max_size=60))
    def check(tokens: list[int]) -> None:
        pieces = pieces_of(OutputText(demo), one_by_one(tokens))
        assert text_of(pieces) == demo.decode(tokens)
        assert sum(piece.num_tokens for piece in pieces) == len(tokens)

    check()


@pytest.mark.parametrize("text", ["😀😀👩‍👩‍👧", "日本語 2024年12月", "½ ٣٤ ²", "é̩è", "🇩🇪🇫🇷"])
def test_characters_split_over_tokens_arrive_whole(demo: TextModel, text: str) -> None:
    tokens = demo.encode(text)
    pieces = pieces_of(OutputText(demo), one_by_one(tokens))
    assert text_of(pieces) == text
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert len(tokens) > len(pieces), "some token ends within a character"


def test_a_token_is_counted_with_the_one_that_completes_its_character(demo: TextModel) -> None:
    tokens = demo.encode("😀")
    output = OutputText(demo)
    assert len(tokens) == 3
    assert output.push(tokens[:1]) is None
    assert output.push(tokens[1:2]) is None
    assert output.push(tokens[2:]) == Piece(3, "😀", None)


def test_an_output_cut_within_a_character_ends_as_it_decodes(demo: TextModel) -> None:
    tokens = demo.encode("x😀")[:-1]
    output = OutputText(demo)
    assert output.push(tokens) == Piece(1, "x", None)
    assert output.finish() == Piece(len(tokens) - 1, "\ufffd", None)


def test_special_tokens_count_and_have_no_text(demo: TextModel) -> None:
    output = OutputText(demo)
    assert output.push(demo.encode("<|im_end|>")) == Piece(1, "", None)
    assert output.finish() is None


def test_a_special_token_within_a_character_does_not_break_it(demo: TextModel) -> None:
    smile, end = demo.encode("😀"), demo.encode("<|im_end|>")
    output = OutputText(demo)
    assert output.push(smile[:2] + end) is None
    assert output.push(smile[2:]) == Piece(4, "😀", None)


def words(model: TextModel, *texts: str) -> list[int]:
    """Each text encoded by itself, so that tests say where tokens end."""
    return [token for text in texts for token in model.encode(text)]


def test_nothing_of_a_stop_string_is_sent_while_it_spans_tokens(demo: TextModel) -> None:
    output = OutputText(demo, stop=["the end"])
    first, *others = words(demo, "fine", "the", " end")
    assert output.push([first]) == Piece(1, "fine", None)
    assert output.push(others[:1]) is None
    assert output.push(others[1:]) == Piece(2, "", "the end")
    assert output.push([first]) is None
    assert output.finish() is None


def test_text_that_did_not_become_a_stop_string_is_sent_late_and_whole(demo: TextModel) -> None:
    output = OutputText(demo, stop=["the end"])
    the, dog = words(demo, "the", " dog")
    assert output.push([the]) is None
    assert output.push([dog]) == Piece(2, "the dog", None)


def test_text_held_back_is_sent_when_the_output_ends(demo: TextModel) -> None:
    output = OutputText(demo, stop=["the end"])
    assert output.push(words(demo, "the")) is None
    assert output.finish() == Piece(1, "the", None)


def test_a_token_is_not_sent_while_its_last_characters_are_held(demo: TextModel) -> None:
    output = OutputText(demo, stop=["e dog barks"])
    the, quick = words(demo, "the", " quick")
    assert output.push([the]) is None
    assert output.push([quick]) == Piece(2, "the quick", None)


def test_a_stop_string_within_one_token_takes_what_is_behind_it_along(demo: TextModel) -> None:
    (token,) = demo.encode(" something")
    output = OutputText(demo, stop=["eth"])
    assert output.push([*words(demo, "see"), token, token]) == Piece(2, "see som", "eth")


def test_of_two_stop_strings_the_one_complete_first_wins(demo: TextModel) -> None:
    for chunks in (one_by_one(words(demo, *"abcdef")), [words(demo, *"abcdef")]):
        pieces = pieces_of(OutputText(demo, stop=["abcde", "bcd"]), chunks)
        assert (text_of(pieces), pieces[-1].stop) == ("a", "bcd")
        assert sum(piece.num_tokens for piece in pieces) == 4


def test_of_two_stop_strings_that_end_together_the_longer_wins(demo: TextModel) -> None:
    pieces = pieces_of(OutputText(demo, stop=["cd", "bcd"]), one_by_one(words(demo, *"abcdef")))
    assert text_of(pieces) == "a"
    assert pieces[-1].stop == "bcd"


def test_a_stop_string_that_overlaps_itself_is_found(demo: TextModel) -> None:
    pieces = pieces_of(OutputText(demo, stop=["aab"]), one_by_one(words(demo, *"xaaab")))
    assert text_of(pieces) == "xa"
    assert pieces[-1].stop == "aab"


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens(demo: TextModel) -> None:
    tokens = words(demo, "stop", "here", "stop", "more")
    pieces = pieces_of(OutputText(demo, stop=["stop"], min_tokens=2), one_by_one(tokens))
    assert text_of(pieces) == "stophere"
    assert pieces[-1] == Piece(1, "", "stop")


def test_a_stop_string_can_be_an_emoji_split_over_tokens(demo: TextModel) -> None:
    pieces = pieces_of(OutputText(demo, stop=["😀"]), one_by_one(demo.encode("ab😀cd")))
    assert text_of(pieces) == "ab"
    assert pieces[-1].stop == "😀"


def test_an_output_goes_on_the_same_after_its_tokens_were_pushed_again(byte_level: TextModel) -> None:
    tokens = byte_level.encode("Emoji 😀😀 日本語の文章 the end")
    for cut in range(len(tokens)):
        before, again = OutputText(byte_level, stop=["end"]), OutputText(byte_level, stop=["end"])
        for token in tokens[:cut]:
            before.push([token])
        again.push(tokens[:cut])
        rest = one_by_one(tokens[cut:])
        assert pieces_of(before, rest) == pieces_of(again, rest)


@any_examples
@given(st.data())
def test_stop_strings_are_found_as_a_scan_of_the_whole_text_finds_them(
    byte_level: TextModel, data: st.DataObject
) -> None:
    text = data.draw(st.text("ab", max_size=40))
    stops = data.draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
    tokens = words(byte_level, *text)
    pieces = pieces_of(OutputText(byte_level, stop=stops), one_by_one(tokens))
    ends = [(end, -len(stop), stop) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    if ends:
        end, minus_length, stop = min(ends)
        assert (text_of(pieces), pieces[-1].stop) == (text[: end + minus_length], stop)
        assert sum(piece.num_tokens for piece in pieces) == end
    else:
        assert (text_of(pieces), pieces[-1:] and pieces[-1].stop) == (text, pieces[-1:] and None)


letters = st.text("ab", max_size=12)


@given(letters.filter(bool), st.lists(letters, max_size=5))
def test_the_held_characters_are_the_longest_end_of_the_text_that_begins_the_stop_string(
    stop: str, pieces: list[str]
) -> None:
    finder, text = StopString(stop), ""
    for piece in pieces:
        text += piece
        if finder.feed(piece) is not None:
            break
        longest = max(length for length in range(len(stop)) if text.endswith(stop[:length]))
        assert finder.held == longest


@given(letters.filter(bool), st.lists(letters, max_size=5))
def test_a_match_ends_where_a_search_of_the_whole_text_says(stop: str, pieces: list[str]) -> None:
    finder, before, found = StopString(stop), 0, None
    for piece in pieces:
        end = finder.feed(piece)
        if end is not None:
            found = before + end
            break
        before += len(piece)
    index = "".join(pieces).find(stop)
    assert found == (None if index < 0 else index + len(stop))


def test_a_long_stop_string_is_prepared_only_as_far_as_text_matches_it() -> None:
    finder = StopString("ab" * 500_000)
    finder.feed("xaba")
    assert len(finder._borders) == 3
