"""A parser that cuts the stream of a NATS server into messages, many at a time.

It does no I/O. nats-py's parser needs several objects and a coroutine call for each message; this
one creates a tuple of slices. It only recognizes where messages end: all other lines are passed on
unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from eventstore.errors import EventStoreError

LINE_BYTES: Final = 256 * 1024
"""Length of the longest accepted line. INFO grows with the cluster, the others have a few KiB."""
MESSAGE_BYTES: Final = 1024 * 1024 * 1024
"""Size in bytes of the largest message accepted; servers accept at most 64 MiB."""

_CRLF: Final = b"\r\n"
_CACHED: Final = 65_536
_DIGITS: Final = 15


class MalformedStream(EventStoreError):  # noqa: N818 - named for the condition that is found
    """The data from the server is not NATS's protocol."""


class NatsMessage(NamedTuple):
    r"""One message, as the server sent it.

    ``headers`` is the whole block (``b"NATS/1.0\r\n..."``) or empty, as is ``reply``.
    """

    sid: int
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


Event: TypeAlias = list[NatsMessage] | bytes
"""Consecutive messages, or another line without its line ending."""


class _Numbers(dict[bytes, int]):
    """Decimal numbers by their digits: the same sizes and subscriptions recur."""

    __slots__ = ()

    def __missing__(self, digits: bytes) -> int:
        if not digits.isdigit() or len(digits) > _DIGITS:
            raise MalformedStream(f"invalid number in NATS's protocol: {digits[:40]!r}")
        if len(self) >= _CACHED:
            self.clear()
        number = self[digits] = int(digits)
        return number


class BatchParser:
    """Parses the data of one connection, which may arrive in pieces of any size."""

    __slots__ = ("_held", "_held_bytes", "_needed", "_numbers")

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._held: list[bytes] = []  # the beginning of an incomplete message or line
        self._held_bytes = 0
        self._needed = 0  # its size when complete; 0: it ends with the next line ending

    def feed(self, data: bytes) -> list[Event]:
        """Return the messages and lines that ``data`` completes, in order.

        Raises MalformedStream for data that is not NATS's protocol; the parser is unusable after
        that.
        """
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._needed:
                if self._held_bytes < self._needed:
                    return []
            elif b"\n" not in data:
                self._check_line(self._held_bytes)
                return []
            data = b"".join(self._held)
            self._held.clear()
        events: list[Event] = []
        position = self._cut(data, events)
        if position < len(data):
            self._held.append(data[position:] if position else data)
            self._held_bytes = len(data) - position
        return events

    def _cut(self, data: bytes, events: list[Event]) -> int:
        """Append complete messages and lines to ``events``; return the offset of the rest."""
        find, numbers, end = data.find, self._numbers, len(data)
        make = tuple.__new__  # takes half the time of NatsMessage()
        batch: list[NatsMessage] = []
        add = batch.append
        self._needed = position = 0
        while position < end:
            line_end = find(_CRLF, position)
            if line_end < 0:
                self._check_line(end - position)
                break
            words = data[position:line_end].split(b" ")
            if words[0] == b"MSG":
                if len(words) == 4:
                    _, subject, sid, size = words
                    reply = b""
                elif len(words) == 5:
                    _, subject, sid, reply, size = words
                else:
                    raise _unknown(data[position:line_end])
                start = line_end + 2
                stop = start + numbers[size]
                if stop + 2 > end:
                    self._needed = self._checked(stop + 2 - position)
                    break
                add(make(NatsMessage, (numbers[sid], subject, reply, b"", data[start:stop])))
                position = stop + 2
            elif words[0] == b"HMSG":
                if len(words) == 5:
                    _, subject, sid, headed, size = words
                    reply = b""
                elif len(words) == 6:
                    _, subject, sid, reply, headed, size = words
                else:
                    raise _unknown(data[position:line_end])
                start = line_end + 2
                body, stop = start + numbers[headed], start + numbers[size]
                if body > stop:
                    raise _unknown(data[position:line_end])
                if stop + 2 > end:
                    self._needed = self._checked(stop + 2 - position)
                    break
                headers, payload = data[start:body], data[body:stop]
                add(make(NatsMessage, (numbers[sid], subject, reply, headers, payload)))
                position = stop + 2
            else:
                if batch:
                    events.append(batch)
                    batch = []
                    add = batch.append
                self._check_line(line_end - position)
                events.append(_known(data[position:line_end]))
                position = line_end + 2
        if batch:
            events.append(batch)
        return position

    @staticmethod
    def _check_line(length: int) -> None:
        if length > LINE_BYTES:
            raise MalformedStream(f"a line of more than {LINE_BYTES} bytes")

    @staticmethod
    def _checked(needed: int) -> int:
        if needed > MESSAGE_BYTES:
            raise MalformedStream(f"a message of {needed} bytes")
        return needed


_OTHER_LINES: Final = (b"PONG", b"PING", b"INFO ", b"+OK", b"-ERR")


def _known(line: bytes) -> bytes:
    if not line.startswith(_OTHER_LINES):
        raise _unknown(line)
    return line


def _unknown(line: bytes) -> MalformedStream:
    return MalformedStream(f"not a line of NATS's protocol: {line[:80]!r}")
