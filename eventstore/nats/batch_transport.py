"""The transports of a BatchClient, between nats-py and its socket: messages bypass nats-py.

nats-py dials, handles INFO and CONNECT, requests TLS, sends its pings and reconnects; for that it
accepts any ``nats.aio.transport.Transport``. This transport passes only the lines for that to it.
From the first ``read`` on, messages are cut out of the received data and passed on in batches.

A PONG answers the oldest PING, ours or nats-py's: all PINGs go through one queue here, which
assigns the PONGs to them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from nats.aio.transport import Transport

from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

    from eventstore.nats.batch_client import BatchClient

# The parser. It does no I/O. nats-py's parser needs several objects and a coroutine call for each
# message; this one creates a tuple of slices. It only recognizes where messages end: all other
# lines are passed on unchanged.

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


PING: Final = b"PING\r\n"

_PORT: Final = 4222
_WRITE_BYTES: Final = 128 * 1024
"""Size in bytes from which data is written to the socket before the end of the loop's turn."""
_CLOSE_SECONDS: Final = 1.0
"""Seconds that the server of a closed connection gets to read the pending data."""


class BatchConnection(asyncio.Protocol, Transport):
    """One connection to a server, from its first byte to its last: a transport for nats-py."""

    def __init__(self, owner: BatchClient) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: BatchParser | None = None  # None: during the handshake
        self._lines = bytearray()  # for nats-py
        self._heard = asyncio.Event()
        self._error: Exception | None = None
        self._pings: deque[Callable[[], object] | None] = deque()  # None: nats-py's own
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._to_flush = False
        self.over = False  # nothing more is sent or passed on
        self.gone = asyncio.Event()  # the socket is closed

    # Called by nats-py.

    async def connect(
        self,
        uri: ParseResult,
        buffer_size: int,  # noqa: ARG002 - asyncio reads as much as there is
        connect_timeout: int,
    ) -> None:
        """Dial a server."""
        async with asyncio.timeout(connect_timeout):
            await self._loop.create_connection(lambda: self, str(uri.hostname), uri.port or _PORT)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,  # noqa: ARG002
        connect_timeout: int,
    ) -> None:
        """Continue in TLS."""
        assert self._transport is not None  # noqa: S101 - narrows the type
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            over = await self._loop.start_tls(
                self._transport, self, ssl_context, server_hostname=name
            )
        if over is None:
            raise ConnectionResetError("the connection was lost during the TLS handshake")
        self.connection_made(over)

    def write(self, payload: bytes) -> None:
        """Send nats-py's lines; the PONGs of its PINGs are passed to it."""
        if self._transport is None:
            raise ConnectionError("no server was dialled")
        self._pings.extend([None] * payload.count(PING))
        self.send(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Send nats-py's lines."""
        for line in payload:
            self.write(line)

    async def drain(self) -> None:
        """Do nothing: nats-py's few lines need no flow control."""

    async def wait_closed(self) -> None:
        """Wait until the socket is closed, but only briefly for a server that no longer reads."""
        if self._transport is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.gone.wait()
        self.abort()

    def at_eof(self) -> bool:
        """Return False: ``read`` raises at the end."""
        return False

    def __bool__(self) -> bool:
        return True

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the socket, or TLS over it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another type

    def data_received(self, data: bytes) -> None:
        """Pass on complete messages and lines."""
        if self._parser is None:
            self._lines += data
            if len(self._lines) > LINE_BYTES:
                self._fail(ConnectionError("the server's greeting is too long"))
            self._heard.set()
            return
        try:
            events = self._parser.feed(data)
        except MalformedStream as error:
            self._fail(ConnectionError(str(error)))
            return
        for event in events:
            if self.over:
                return
            if isinstance(event, list):
                self._owner.arrived(event)
            else:
                self._line(event)

    def eof_received(self) -> None:
        """End the connection: NATS has no half-closed connections."""
        self._end(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection."""
        self.gone.set()
        if not isinstance(error, OSError):  # nats-py reconnects only after one
            error = ConnectionResetError(str(error or "the server closed the connection"))
        self._end(error)

    def pause_reading(self) -> None:
        """Pause reading from the socket."""
        transport = self._transport
        if transport is not None and not transport.is_closing():  # uvloop raises on a closed one
            transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the socket."""
        transport = self._transport
        if transport is not None and not transport.is_closing():  # uvloop raises on a closed one
            transport.resume_reading()

    # Output.

    def send(self, data: bytes) -> None:
        """Write protocol lines, at the latest when the loop's turn ends."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _WRITE_BYTES:
            self._flush()
        elif not self._to_flush:
            self._to_flush = True
            self._loop.call_soon(self._flush)

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Send our own PING; ``done`` is called when its PONG arrives."""
        self._pings.append(on_answer)
        self.send(PING)

    @property
    def unsent(self) -> int:
        """The number of bytes that wait for the socket."""
        if self.over or self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        self._to_flush = False
        if not self._out or self._transport is None or self._transport.is_closing():
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self._transport.write(data)

    # Input.

    def _line(self, line: bytes) -> None:
        if line.startswith(b"PONG"):
            on_answer = self._pings.popleft() if self._pings else None
            if on_answer is not None:
                on_answer()
                return
        elif line.startswith(b"-ERR"):
            # Not passed to nats-py, which closes permanently on most errors. If the server wants to
            # end the connection it closes it, and nats-py reconnects.
            self._owner.problem(line[4:].decode("utf-8", "backslashreplace").strip(" '"))
            return
        elif line.startswith(b"+OK"):
            return
        self._lines += line + b"\r\n"
        self._heard.set()

    async def readline(self) -> bytes:
        """Return one line of the greeting; raise ConnectionError if the connection has ended."""
        while (end := self._lines.find(b"\n") + 1) == 0:
            await self._wait_for_input()
        line = bytes(self._lines[:end])
        del self._lines[:end]
        if line.startswith(b"PONG") and self._pings:
            self._pings.popleft()
        return line

    async def read(self, buffer_size: int) -> bytes:  # noqa: ARG002
        """Return lines for nats-py; the first call ends the handshake."""
        if self._parser is None:
            self._parser = BatchParser()
            received = bytes(self._lines)
            self._lines.clear()
            self.data_received(received)
        while not self._lines:
            await self._wait_for_input()
        lines = bytes(self._lines)
        self._lines.clear()
        return lines

    async def _wait_for_input(self) -> None:
        if self._error is not None:
            raise self._error
        self._heard.clear()
        await self._heard.wait()

    # Closing.

    def _fail(self, error: Exception) -> None:
        if not self.over:
            self._owner.problem(str(error))
        self._end(error)
        self.abort()

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._heard.set()
        if not self.over:
            self.over = True
            self._pings.clear()
            self._owner.lost(self)

    def close(self) -> None:
        """Close the connection when all written data is sent."""
        self._flush()
        self._end(ConnectionAbortedError("the connection was closed locally"))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        self.over = True
        if self._transport is not None and not self.gone.is_set():
            self._transport.abort()
