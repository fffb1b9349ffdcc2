"""What one client has asked: who it is, its streams by the client's names; commands are obeyed in order, one at a time.

A command that cannot be obeyed becomes a `failed` for its request and touches nothing else. Never touches the socket.
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

from actors.ingress.desk import Desk
from actors.ingress.stream import Stream
from protocol.errors import RequestError
from protocol.session import Session
from protocol.wire import Authenticate, Cancel, Credit, Failed, Generate, Resume, SessionCommand, Warm


class Orders:
    """`on_news` hears of every stream that has events to take. `tenant` None: no valid key yet."""

    def __init__(self, session: Session, desk: Desk, tenant: str | None, on_news: Callable[[Stream], None]) -> None:
        self.streams: dict[str, Stream] = {}
        self.tenant = tenant
        self.has_wrong_key = False
        self._session = session
        self._desk = desk
        self._on_news = on_news
        self._left: list[SessionCommand] = []
        self._obeying = asyncio.Lock()

    @property
    def are_left(self) -> bool:
        """There are commands that nobody obeys yet."""
        return bool(self._left)

    def collect(self) -> None:
        """Keep the commands that an event has brought: the end of a request may let the next of its lane begin."""
        self._left += self._session.take_commands()

    async def obey(self) -> None:
        """Obey all there are; whichever task found them, a cancel must find what it cancels."""
        async with self._obeying:
            while commands := self._left + self._session.take_commands():
                self._left = []
                for command in commands:
                    await self._obey(command)

    def abandon(self) -> None:
        """The client is gone: what it asked for is not wanted any more."""
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.listen(None)
            self._desk.live.cancel(stream)

    async def _obey(self, command: SessionCommand) -> None:
        try:
            if isinstance(command, Authenticate):
                self._authenticate(command.key)
            else:
                await self._serve(command)
        except RequestError as error:
            self._desk.metrics.count_failure(error.code)
            self._session.send_event(
                Failed(
                    id=_name_of(command),
                    code=error.code,
                    message=error.message,
                    param=error.param,
                    retry_after_ms=error.retry_after_ms,
                )
            )

    def _authenticate(self, key: str) -> None:
        if self.tenant is not None:
            return
        self.tenant = self._desk.keys.tenant_of(key)
        if self.tenant is None:
            self.has_wrong_key = True
            raise RequestError("unauthenticated", "the key is not valid", param="key")

    async def _serve(self, command: Generate | Warm | Cancel | Credit | Resume) -> None:
        if self.tenant is None:
            raise RequestError("unauthenticated", "no valid key has been sent on this connection")
        match command:
            case Generate():
                await self._generate(command, self.tenant, warm=False)
            case Warm(generate=generate):
                await self._generate(generate, self.tenant, warm=True)
            case Cancel(id=name):
                if name in self.streams:
                    self._desk.live.cancel(self.streams[name])
            case Credit(id=name, tokens=tokens):
                if name in self.streams:
                    self._desk.live.grant(self.streams[name], tokens)
            case Resume():
                message = "resume_token is unknown or its time is over; send resume_tokens instead"
                raise RequestError("resume_expired", message, param="resume_token")
            case _:
                assert_never(command)

    async def _generate(self, generate: Generate, tenant: str, *, warm: bool) -> None:
        desk = self._desk
        desk.status.check_open()
        stream = await desk.requests.read(
            generate,
            request=desk.live.next_number(),
            tenant=tenant,
            max_model_len=desk.status.max_model_len,
            warm=warm,
        )
        desk.status.check_open()  # again: a long prompt took its time
        stream.listen(self._on_news)
        self.streams[generate.id] = stream
        if stream.has_ended:
            return
        try:
            await desk.live.submit(stream)
        except BaseException:
            self.streams.pop(generate.id, None)
            raise


def _name_of(command: SessionCommand) -> str | None:
    match command:
        case Authenticate():
            return None
        case Warm(generate=generate):
            return generate.id
        case _:
            return command.id
