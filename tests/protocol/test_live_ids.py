"""Bookkeeping of one connection's ids."""

from protocol.live_ids import MAX_ENDED, LiveIds


def test_an_id_lives_from_begin_to_end() -> None:
    live = LiveIds()
    assert not live.was_used("a")
    live.begin("a")
    assert live.is_live("a")
    assert live.is_heard("a")
    live.end("a")
    assert not live.is_live("a")
    assert live.was_used("a")


def test_a_muted_id_keeps_its_name_but_is_not_heard() -> None:
    live = LiveIds()
    live.begin("a")
    live.mute("a")
    assert live.is_live("a")
    assert not live.is_heard("a")


def test_only_the_youngest_ended_ids_are_remembered() -> None:
    live = LiveIds()
    for number in range(MAX_ENDED + 10):
        live.begin(str(number))
        live.end(str(number))
    assert not live.was_used("9")
    assert live.was_used("10")
    assert live.was_used(str(MAX_ENDED + 9))
