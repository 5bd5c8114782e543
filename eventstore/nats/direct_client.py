"""nats-py's client, with a direct path for messages that must not wait.

nats-py passes published messages to one task and received ones to another. Each task waits for the
next turn of the event loop; while a broker is busy a turn takes milliseconds, and an append would
take five turns. Here it takes one: messages are written to the socket immediately, and listeners
are called as their messages arrive, unless nats-py's task has not handled everything that arrived
before.

This module and ``eventstore.nats.batch_client`` are the only ones that use private parts of
nats-py: ``_process_msg`` is called for each message, ``_transport`` is the current connection,
``_attempt_reconnect`` replaces it and ``_ping_interval`` checks it, ``_status`` is its state,
``_pending`` and ``_flush_queue`` are the output of its task and the queue that wakes it,
``_io_reader`` and ``_io_writer`` are the streams of a transport, ``_ps`` is the parser with its
unparsed input.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE

from eventstore.task_cancellation import keeping_cancellation

_LARGE: Final = 64 * 1024
"""Size in bytes from which a payload is written without copying it."""
API: Final = "$JS.API."
"""Prefix of the subjects of JetStream's API if no domain is set."""
_WEB_SOCKET: Final = ("ws", "wss")
_MESSAGE: Final = re.compile(rb"MSG (\S+) (\d+) (?:\S+ )?(\d+)\r\n")
"""The line before a message without headers."""
_HELD: Final = 256 * 1024
"""Largest incomplete message of a listener that is not left to nats-py."""
_LINE: Final = 4096
"""Largest incomplete line of that kind."""
_AGAIN_SECONDS: Final = 0.1
"""Seconds before another attempt to connect, after one that ended with an unexpected error."""


class _DirectTransport(TcpTransport):
    """A connection to a server; a client handles the received bytes before nats-py reads them.

    Writing to a closed connection raises ConnectionResetError: nats-py does not expect uvloop's
    RuntimeError, with which its task that connects would end for ever.
    """

    def __init__(self, client: DirectClient) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._client = client

    async def connect(self, *args: Any, **kwargs: Any) -> None:
        """Dial a server."""
        await super().connect(*args, **kwargs)
        self._watch(self._io_reader)

    async def connect_tls(self, *args: Any, **kwargs: Any) -> None:
        """Continue in TLS."""
        await super().connect_tls(*args, **kwargs)
        self._watch(self._io_reader)

    def write(self, payload: bytes) -> None:
        """Send bytes."""
        try:
            super().write(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from None

    def writelines(self, payload: list[bytes]) -> None:
        """Send bytes."""
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from None

    def __bool__(self) -> bool:
        """Return True, also before it is connected: nats-py would replace it."""
        return True

    def _watch(self, reader: asyncio.StreamReader | None) -> None:
        if reader is None:
            return
        feed = reader.feed_data
        held = b""

        def watched(data: Any) -> None:
            nonlocal held
            if held:
                data, held = held + data, b""
            # The buffer has what nats-py's task has not read yet.
            if reader is self._io_reader and not reader._buffer:  # type: ignore[attr-defined]  # noqa: SLF001
                data, held = self._client.take(data)
            if data:
                feed(data)
                self._client.on_arrival()

        reader.feed_data = watched  # type: ignore[method-assign]


class DirectClient(Client):
    """A connection to NATS; its additions to nats-py are for the event loop's thread."""

    _transport: Any  # wheels are compiled without nats-py and its types

    def __init__(self, domain: str | None = None) -> None:
        """Use the JetStream in ``domain``; None: in the domain of the server."""
        super().__init__()
        self.api_prefix = API if domain is None else f"$JS.{domain}.API."
        """Prefix of the subjects of JetStream's API."""
        self.on_arrival: Callable[[], None] = _nothing
        """Called when data of the server was read, before nats-py's task handles it."""
        self._listeners: dict[int, Callable[[str, bytes], None]] = {}
        self._failures: set[asyncio.Future[None]] = set()
        """Calls of the error callback that have not ended."""

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is None and s.uri.scheme not in _WEB_SOCKET:
            self._transport = _DirectTransport(self)
        await super()._connect_to_server(s)

    async def listen(self, subject: str, callback: Callable[[str, bytes], None]) -> Subscription:
        """Subscribe; ``callback`` gets subject and payload of each message, without headers.

        When this returns the server knows the subscription. Exceptions of the callback are passed
        to the error callback. :meth:`leave` ends it.
        """
        subscription = await self.subscribe(subject)
        self._listeners[subscription._id] = callback  # noqa: SLF001 - _process_msg is told it
        await self.flush()
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        """End a subscription of :meth:`listen`; its callback is no longer called."""
        self._listeners.pop(subscription._id, None)  # noqa: SLF001 - as in ``listen``
        with keeping_cancellation():
            await subscription.unsubscribe()

    async def flush(self, timeout: int = 10) -> None:  # noqa: ASYNC109 - as in nats-py
        """Wait until the server has received everything sent so far.

        nats-py's own PING may overtake data that its task has not sent yet.
        """
        with keeping_cancellation():
            await self._flush_pending(force_flush=True)
            await super().flush(timeout)

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        """Send a request and return the reply, as nats-py; a cancellation is not lost."""
        with keeping_cancellation():
            return await super().request(*args, **kwargs)

    async def publish(self, *args: Any, **kwargs: Any) -> None:
        """Publish a message, as nats-py; a cancellation is not lost."""
        with keeping_cancellation():
            await super().publish(*args, **kwargs)

    async def subscribe(self, *args: Any, **kwargs: Any) -> Subscription:
        """Subscribe, as nats-py; a cancellation is not lost."""
        with keeping_cancellation():
            return await super().subscribe(*args, **kwargs)

    def send_now(
        self, subject: str, payload: Sequence[bytes], *, reply: str, headers: Mapping[str, str]
    ) -> bool:
        """Publish a message in pieces without waiting.

        Return False if that is impossible: nothing is kept for later.

        Names and values must be legal: they are sent unchecked.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        size = len(head) + sum(map(len, payload))
        first = f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode()
        return self._write_now((first, head, *payload, b"\r\n"), size)

    def publish_now(self, subject: str, payload: bytes) -> bool:
        """Publish a message without headers; return False if that is impossible."""
        first = f"PUB {subject} {len(payload)}\r\n".encode()
        return self._write_now((first, payload, b"\r\n"), len(payload))

    def _write_now(self, command: Sequence[bytes], size: int) -> bool:
        """Send a command with ``size`` bytes of headers and payload, unless that is impossible."""
        transport = self._transport
        # For a larger message the server would end the connection.
        if not self.is_connected or transport is None or size > self.max_payload:
            return False
        if not isinstance(transport, TcpTransport):
            self._send_soon(b"".join(command))
            return True
        writer = transport._io_writer  # noqa: SLF001
        try:
            if writer is not None and size >= _LARGE:
                writer.transport.writelines(command)
            else:
                transport.write(b"".join(command))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # it is closed, and nats-py has not noticed yet
            return False
        return True

    async def change_server(self) -> None:
        """Switch to another known server, unless that is being done already.

        Unsent data is discarded: a suspended server never reads it.
        """
        if self.is_connected:
            self._abort()
            await self.force_reconnect()

    def _abort(self) -> None:
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:  # noqa: SLF001
            self._transport._io_writer.transport.abort()  # noqa: SLF001

    async def _attempt_reconnect(self) -> None:
        """Connect to another server, as nats-py; at an unexpected error, try again.

        nats-py would end its only task for this, and the client would stay without a connection
        for ever. It would also wait until unsent data is written.
        """
        this = asyncio.current_task()
        while True:
            self._abort()
            try:
                await super()._attempt_reconnect()
            except asyncio.CancelledError:
                # nats-py may have cancelled what it waits for, and not this task.
                if this is None or this.cancelling():
                    raise
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no connection
                await self._error_cb(error)
            else:
                if not (self.is_reconnecting or self.is_connecting):
                    return
            if self.is_closed or (this is not None and this.cancelling()):
                return
            self._status = Client.RECONNECTING
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _ping_interval(self) -> None:
        with contextlib.suppress(OSError):  # the task that reads finds out that it is closed
            await super()._ping_interval()

    def _send_soon(self, command: bytes) -> None:
        """Pass a command to nats-py's task, since a WebSocket does not send by itself."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Pass received messages to their listeners.

        Return the rest, which begins with the first bytes that are not a message of a listener: for
        nats-py, or, if it is the beginning of such a message, to be put before the next bytes.
        """
        parser = self._ps
        if parser.buf or parser.state != AWAITING_CONTROL_LINE or not self.is_connected:
            return data, b""
        at = 0
        while (line := _MESSAGE.match(data, at)) is not None:
            begin = line.end()
            end = begin + int(line[3])
            callback = self._listeners.get(int(line[2]))
            if callback is None:
                break
            if data[end : end + 2] != b"\r\n":
                if end + 2 > len(data) and end - begin <= _HELD:
                    return b"", data[at:]
                break
            at = end + 2
            self._hear(callback, line[1], data[begin:end])
        others = data[at:] if at else data
        if (
            line is None
            and 4 <= len(others) <= _LINE
            and others[:4] == b"MSG "
            and b"\n" not in others
        ):
            return b"", others
        return others, b""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any
    ) -> None:
        callback = self._listeners.get(sid)
        if callback is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self._hear(callback, subject, data)

    def _hear(self, callback: Callable[[str, bytes], None], subject: bytes, data: bytes) -> None:
        try:
            callback(subject.decode(), data)
        except Exception as error:  # noqa: BLE001 - nats-py would read no further
            failure = asyncio.ensure_future(self._error_cb(error))
            self._failures.add(failure)
            failure.add_done_callback(self._failures.discard)


def _nothing() -> None:
    """Do nothing."""
