from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.text.stop import StopString

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
