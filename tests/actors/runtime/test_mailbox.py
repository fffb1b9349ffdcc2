import asyncio

import pytest

from actors.runtime.mailbox import CONTROL_CAPACITY, Envelope, Mailbox
from actors.runtime.ref import ActorStopped
from tests.actors.runtime.local import offer, put


class Capital(str):
    """A control message."""

    __slots__ = ()


def mailbox_of(capacity: int) -> Mailbox[str]:
    return Mailbox("test", capacity, (Capital,))


def envelope_of(text: str) -> Envelope[str]:
    """Messages in capitals are control messages."""
    return Envelope(Capital(text) if text.isupper() else text)


async def test_control_messages_come_first_and_each_lane_keeps_its_order() -> None:
    mailbox = mailbox_of(10)
    for text in ("a", "B", "c", "D"):
        assert offer(mailbox, envelope_of(text))
    assert mailbox.depth == 4
    assert [(await mailbox.take()).message for _ in range(4)] == ["B", "D", "a", "c"]
    assert mailbox.take_nowait() is None


async def test_a_full_mailbox_has_room_for_control_messages() -> None:
    mailbox = mailbox_of(1)
    assert offer(mailbox, envelope_of("a"))
    assert not offer(mailbox, envelope_of("b"))
    assert all(offer(mailbox, envelope_of("B")) for _ in range(CONTROL_CAPACITY))
    assert not offer(mailbox, envelope_of("B"))


async def test_a_message_arriving_wakes_its_taker() -> None:
    mailbox = mailbox_of(1)
    taking = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    await put(mailbox, envelope_of("a"))
    assert (await taking).message == "a"


async def test_who_waits_enters_in_order_and_nobody_jumps_the_queue() -> None:
    mailbox = mailbox_of(1)
    await put(mailbox, envelope_of("a"))
    waiting = [asyncio.create_task(put(mailbox, envelope_of(text))) for text in ("b", "c")]
    await asyncio.sleep(0)
    assert (await mailbox.take()).message == "a"
    assert not offer(mailbox, envelope_of("d"))
    assert [(await mailbox.take()).message for _ in range(2)] == ["b", "c"]
    await asyncio.gather(*waiting)


async def test_a_cancelled_wait_takes_its_message_back() -> None:
    mailbox = mailbox_of(1)
    await put(mailbox, envelope_of("a"))
    given_up = asyncio.create_task(put(mailbox, envelope_of("b")))
    stays = asyncio.create_task(put(mailbox, envelope_of("c")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert [(await mailbox.take()).message for _ in range(2)] == ["a", "c"]
    await stays


async def test_closing_frees_everybody() -> None:
    mailbox = mailbox_of(1)
    reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await put(mailbox, Envelope("a", reply))
    waiting = asyncio.create_task(put(mailbox, envelope_of("b")))
    await asyncio.sleep(0)
    mailbox.close()
    with pytest.raises(ActorStopped):
        await reply
    with pytest.raises(ActorStopped):
        await waiting
    with pytest.raises(ActorStopped):
        await put(mailbox, envelope_of("c"))
    assert not offer(mailbox, envelope_of("d"))
    assert mailbox.depth == 0


def test_a_lane_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="room for one item"):
        mailbox_of(0)
