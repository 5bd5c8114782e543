"""A connection of the bridge to NATS, without a network."""

from collections.abc import Callable
from typing import NamedTuple

from protocol.nats.headers import Headers, parse_headers


class Sent(NamedTuple):
    """A message as a NATS server gets it."""

    subject: str
    reply: str
    headers: Headers
    payload: bytes


class Wire:
    """A connection to a server that answers on :meth:`answer`."""

    def __init__(self, inbox: bytes = b"_INBOX.us.") -> None:
        self.inbox = inbox
        self.data = b""
        self.fences: list[Callable[[], None]] = []

    def write(self, data: list[bytes]) -> bool:
        self.data += b"".join(data)
        return True

    def fence(self, done: Callable[[], None]) -> None:
        self.fences.append(done)

    def answer(self) -> None:
        """Say that there were subscribers."""
        fences, self.fences = self.fences, []
        for done in fences:
            done()

    def take(self) -> list[Sent]:
        """Return what was written since the last time."""
        found, data = [], self.data
        self.data = b""
        while data:
            line, _, rest = data.partition(b"\r\n")
            _, subject, *reply, head, size = line.split(b" ")
            headers, payload = rest[: int(head)], rest[int(head) : int(size)]
            said = reply[0].decode() if reply else ""
            found.append(Sent(subject.decode(), said, parse_headers(headers), payload))
            data = rest[int(size) + 2 :]
        return found

    @property
    def subjects(self) -> list[str]:
        """The subjects of what was written, in order."""
        lines = self.data.split(b"\r\n")
        return [line.split(b" ")[1].decode() for line in lines if line.startswith(b"HPUB ")]
