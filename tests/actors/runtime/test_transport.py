"""What only sockets have: the handshake, the bound on frames, reconnecting."""

import asyncio
import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest

from actors.runtime import channel
from actors.runtime.channel import RemoteRef, tell_all
from actors.runtime.ref import ActorRef, ActorStopped, MessageRefused
from actors.runtime.transport import FrameKind, FrameReader, FrameRefused, encode_frame
from tests.actors.runtime.cast import INBOX, Alien, Note, Notebook, Urgent, alive
from tests.actors.runtime.local import LocalSystem


def ref_to(path: Path) -> RemoteRef[Any]:
    return RemoteRef(path, "notebook", INBOX, connect_timeout_s=0.2)


async def test_a_message_that_is_none_of_the_inbox_is_refused_at_the_door_and_its_sender_hears(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    notebook = Notebook()
    async with alive(notebook, path):
        refusals: list[str] = []
        inbox = dataclasses.replace(INBOX, on_refused=refusals.append)
        ref: RemoteRef[Any] = RemoteRef(path, "notebook", inbox)
        with pytest.raises(MessageRefused, match="Alien"):
            await ref.ask(Alien(), timeout_s=5)
        await ref.tell(Alien())
        assert await ref.ask(Note("after it"), timeout_s=5) == "noted after it"
        assert len(refusals) == 1
        assert "Alien" in refusals[0]
        await ref.close()
    assert notebook.texts == ["after it"]


async def test_a_message_over_the_frame_bound_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    async with alive(Notebook(), path):
        ref = ref_to(path)
        with pytest.raises(MessageRefused, match="the limit is"):
            await ref.tell(Note("x" * (64 * 2**20 + 1)))
        await ref.close()


async def test_a_peer_that_announces_too_large_a_frame_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    async with alive(Notebook(), path):
        ref = ref_to(path)
        await ref.ask(Note("is it there?"), timeout_s=5)
        await ref.close()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(struct.pack("<IBQ", 2**31, 0, 0))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_ref_may_be_used_before_its_actor_listens(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    ref: RemoteRef[Any] = RemoteRef(path, "notebook", INBOX)
    asked = asyncio.create_task(ref.ask(Note("early"), timeout_s=5))
    await asyncio.sleep(0)
    async with alive(Notebook(), path):
        assert await asked == "noted early"
        await ref.close()


async def test_a_ref_reaches_the_next_life_of_its_actor(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    ref = ref_to(path)
    for life in range(3):
        async with alive(Notebook(), path):
            assert await ref.ask(Note(f"life {life}"), timeout_s=5) == f"noted life {life}"
            assert await ref.ask(Urgent(f"life {life}"), timeout_s=5) == f"noted life {life}"
    with pytest.raises(ActorStopped):
        await ref.tell(Note("no life"))
    await ref.close()


async def test_what_was_queued_for_one_life_is_not_sent_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    ref = ref_to(path)
    first = Notebook()
    first.gate.clear()
    async with alive(first, path, 1):
        telling = [asyncio.create_task(ref.tell(Note("old" * 100_000))) for _ in range(50)]
        await first.entered.wait()
    await asyncio.gather(*telling, return_exceptions=True)
    second = Notebook()
    async with alive(second, path):
        await ref.ask(Note("new"), timeout_s=5)
    assert second.texts == ["new"]
    await ref.close()


async def test_what_is_told_to_all_is_encoded_once_and_who_has_stopped_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[object] = []

    def encode(kind: FrameKind, correlation: int, message: object) -> bytes:
        encoded.append(message)
        return encode_frame(kind, correlation, message)

    monkeypatch.setattr(channel, "encode_frame", encode)
    first, second, near = Notebook(), Notebook(), Notebook()
    refs = [RemoteRef[Any](tmp_path / name, name, INBOX, connect_timeout_s=0.2) for name in ("first", "gone", "second")]
    async with alive(first, tmp_path / "first"), alive(second, tmp_path / "second"), LocalSystem() as system:
        near_ref = system.start(near, name="near")
        told: list[ActorRef[Any]] = [*refs, near_ref]
        stopped = await tell_all(told, Note("to all"))
        assert stopped == ["gone"]
        assert encoded == [Note("to all")]
        async with asyncio.timeout(5):
            await asyncio.gather(*(notebook.entered.wait() for notebook in (first, second, near)))
        for ref in refs:
            await ref.close()
    assert first.texts == second.texts == near.texts == ["to all"]


async def test_nothing_is_tried_before_there_is_a_connection(tmp_path: Path) -> None:
    async with alive(Notebook(), tmp_path / "notebook.sock"):
        ref = ref_to(tmp_path / "notebook.sock")
        assert not ref.try_tell(Note("too early"))
        await ref.tell(Note("told"))
        assert ref.try_tell(Note("tried"))
        await ref.close()


async def test_a_socket_left_by_a_killed_process_does_not_hinder_the_next(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sock"
    path.touch()
    async with alive(Notebook(), path):
        ref = ref_to(path)
        assert await ref.ask(Note("hello"), timeout_s=5) == "noted hello"
        await ref.close()


def test_frames_are_found_however_the_bytes_are_cut() -> None:
    stream = b"".join(struct.pack("<IBQ", len(text), 0, 0) + text for text in (b"", b"a", b"bc" * 50, b"d"))
    for size in range(1, 30):
        reader = FrameReader()
        payloads = []
        for start in range(0, len(stream), size):
            payloads += [frame.payload for frame in reader.split(stream[start : start + size])]
        assert payloads == [b"", b"a", b"bc" * 50, b"d"]


def test_a_frame_of_unknown_kind_is_refused() -> None:
    reader = FrameReader()
    with pytest.raises(FrameRefused):
        list(reader.split(struct.pack("<IBQ", 0, 77, 0)))
