"""A session whose commands wait until a test takes them."""

from protocol.errors import ErrorCode
from protocol.session import Frame, Session
from protocol.wire import SessionCommand, SessionEvent


class KeptSession:
    """Does what the session does, and keeps what it hands back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._commands: list[SessionCommand] = []

    def receive_frame(self, frame: Frame) -> None:
        self._keep(self._session.receive_frame(frame))

    def send_event(self, event: SessionEvent) -> None:
        self._keep(self._session.send_event(event))

    def take_commands(self) -> list[SessionCommand]:
        commands, self._commands = self._commands, []
        return commands

    def take_frames(self) -> list[Frame]:
        return self._session.take_frames()

    def take_refusals(self) -> list[ErrorCode]:
        return self._session.take_refusals()

    def _keep(self, command: SessionCommand | None) -> None:
        if command is not None:
            self._commands.append(command)
