"""A connection to NATS that transfers messages in batches.

nats-py, which keeps the log's connection, needs a coroutine for each published message, and several
objects and a task switch for each received one. A BatchClient leaves the rare work to nats-py
(dialing, access, TLS, the cluster's servers, pings, reconnecting) and lets messages bypass it:
rendered publications are written directly, received messages are passed on in batches, as slices.

All methods belong to one event loop; none blocks, and none is called from another thread. An
exception in a callback ends the connection, and the client dials again.
"""

import ast
import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self

from nats.aio.client import Client

from eventstore.display import escaped
from eventstore.errors import BadNatsOptions, NatsUnavailable
from eventstore.nats.batch_transport import BatchConnection, NatsMessage
from eventstore.nats.connection import (
    ConnectionOptions,
    Notice,
    check_server_version,
    dial,
    disconnect,
)

_REPLAYED: Final = 10_000
_PROBLEMS: Final = 100
_PROBLEM_LENGTH: Final = 500
_REFUSED: Final = re.compile(r'Permissions Violation for Subscription to ("(?:[^"\\]|\\.)*")')


def encode_pub(subject: bytes, payload: bytes) -> bytes:
    """Return the protocol lines that publish a message without headers or reply.

    ``subject`` must be legal: it is sent unchecked.
    """
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def encode_hpub(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """Return the protocol lines that publish a message with headers; ``reply`` may be empty."""
    where = b"%b %b" % (subject, reply) if reply else subject
    sizes = len(headers), len(headers) + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (where, *sizes, headers, payload)


class BatchClient:
    """A connection to NATS that reconnects forever; created by ``open``.

    ``connected`` says whether it can be used now.
    """

    def __init__(
        self,
        where: str,
        *,
        on_messages: Callable[[list[NatsMessage]], None],
        on_up: Notice,
        on_down: Notice,
        on_error: Callable[[str], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self.connected = False
        self._where = where
        self._on_messages = on_messages
        self._on_up = on_up
        self._on_down = on_down
        self._on_error = on_error
        self._on_refused = on_refused
        self._client = _Client(self)
        self._connection: BatchConnection | None = None  # the connection that gets subscriptions
        self._open = False  # between open and close
        self._problems: set[str] = set()
        self._refused: list[str] = []  # before all subscriptions were renewed
        self._last_sid = 0
        self._subjects: dict[int, bytes | None] = {}  # by sid; None: being unsubscribed
        self._leaving: list[int] = []  # unsubscribed in this turn of the loop
        self.inbox = self._client.new_inbox().encode() + b"."
        """Prefix of the reply subjects whose messages arrive as messages of ``inbox_sid``."""
        self.inbox_sid = self.subscribe(self.inbox + b">")

    @classmethod
    async def open(
        cls,
        options: ConnectionOptions,
        *,
        on_messages: Callable[[list[NatsMessage]], None],
        on_up: Notice,
        on_down: Notice,
        on_error: Callable[[str], None] = lambda _text: None,
        on_refused: Callable[[str], None] = lambda _subject: None,
        timeout: float = 5.0,  # noqa: ASYNC109 - the whole of several attempts, not one await
    ) -> Self:
        """Return a connected client; waits for a server for up to ``timeout`` seconds.

        ``on_messages`` is called with the messages of one read of the socket, in order. ``on_down``
        is called when the connection is lost, ``on_up`` when there is another one and all
        subscriptions are renewed; neither for the first connection nor for ``close``. (If the
        first connection is lost before this returns, ``connected`` is False and ``on_up`` follows.)
        ``on_error`` is called with each problem as one line, once for each connection.
        ``on_refused`` is called with the subject of a subscription that the server refuses, each
        time that it does; after ``on_up``, where it concerns another connection.

        Raises NatsUnavailable when no server admits the client, or the server is unsuitable,
        BadNatsOptions for invalid options.
        """
        for url in options.urls:
            if url.startswith(("ws://", "wss://")):
                raise BadNatsOptions(
                    f"{options.where}: WebSocket is not for this connection: use nats:// or tls://"
                )
        link = cls(
            options.where,
            on_messages=on_messages,
            on_up=on_up,
            on_down=on_down,
            on_error=on_error,
            on_refused=on_refused,
        )
        await dial(
            link._client,
            options,
            timeout=timeout,
            on_reconnect=link._on_connected,
            on_closed=link._given_up,
            on_error=on_error,
            no_echo=True,
        )
        try:
            link._client.check(options.where)
        except BaseException:
            await disconnect(link._client)
            raise
        link._open = True
        link._on_connected(first=True)
        return link

    @property
    def max_payload(self) -> int:
        """Size in bytes of the largest message, headers included, that the server accepts."""
        return self._client.max_payload

    @property
    def unsent(self) -> int:
        """The number of bytes passed to ``write`` that the socket has not taken yet."""
        return self._connection.unsent if self._connection is not None else 0

    def write(self, data: bytes | list[bytes]) -> bool:
        """Send rendered protocol lines; return False, and send nothing, if not connected.

        They are sent in order, at the end of this turn of the event loop at the latest, unless the
        connection is lost: then everything that ``fence`` did not confirm may be lost too.
        """
        if not self.connected or self._connection is None:
            return False
        self._connection.send(data if isinstance(data, bytes) else b"".join(data))
        return True

    def subscribe(self, subject: bytes) -> int:
        """Subscribe, now and after each reconnect; return the subscription's number.

        Numbers are not reused.
        """
        self._last_sid = sid = self._last_sid + 1
        self._subjects[sid] = subject
        if self._connection is not None:
            self._connection.send(b"SUB %b %d\r\n" % (subject, sid))
        return sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. Messages that the server had already sent still arrive."""
        if self._subjects.get(sid) is None:
            return
        if self._connection is None:
            del self._subjects[sid]
            return
        self._subjects[sid] = None
        self._connection.send(b"UNSUB %d\r\n" % sid)
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self._confirm_leaving)
        self._leaving.append(sid)

    def fence(self, on_confirmed: Callable[[], object]) -> None:
        """Call ``done`` when the server has processed everything written before.

        It is never called if the connection is lost before that, or is down now.
        """
        if self.connected and self._connection is not None:
            self._confirm_leaving()  # after a fence no message of an ended subscription arrives
            self._connection.ping(on_confirmed)

    def pause_reading(self) -> None:
        """Pause reading, briefly: the server disconnects slow clients."""
        if self._connection is not None:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        if self._connection is not None:
            self._connection.resume_reading()

    async def close(self) -> None:
        """Close the connection; written data is still sent, if the server reads it."""
        self._open = False
        self.connected = False
        await disconnect(self._client)

    # Called by the transport.

    def arrived(self, messages: list[NatsMessage]) -> None:
        """Pass on messages."""
        subjects = self._subjects
        for message in messages:
            if message[0] not in subjects:
                # the server may have queued them for sending when it confirmed the UNSUB
                messages = [message for message in messages if message[0] in subjects]
                break
        if messages:
            self._on_messages(messages)

    def problem(self, text: str) -> None:
        """Report an error of the server once, and each refused subscription."""
        line = f"NATS at {self._where}: {escaped(text, _PROBLEM_LENGTH)}"
        if line not in self._problems and len(self._problems) < _PROBLEMS:
            self._problems.add(line)
            self._on_error(line)
            if len(self._problems) == _PROBLEMS:
                self._on_error(f"NATS at {self._where}: more such problems are not shown")
        subject = _refused(text)
        if subject is not None and self.connected:
            self._on_refused(subject)
        elif subject is not None:
            self._refused.append(subject)

    def lost(self, connection: BatchConnection) -> None:
        """Forget a connection."""
        if connection is not self._connection:
            return
        self._connection = None
        self._leaving.clear()
        for sid in [sid for sid, subject in self._subjects.items() if subject is None]:
            del self._subjects[sid]
        if self.connected:
            self.connected = False
            self._on_down()

    # A new connection.

    def _on_connected(self, *, first: bool = False) -> None:
        connection = self._client.dialled
        if connection is None or connection.over or connection is self._connection:
            return
        self._connection = connection
        self._problems.clear()
        self._refused.clear()
        self._replay(connection, iter(list(self._subjects)), first=first)

    def _replay(
        self, connection: BatchConnection, sids: Iterator[int], *, first: bool = False
    ) -> None:
        """Send the subscriptions that existed at connection time, a part in each turn."""
        if connection is not self._connection:
            return
        piece = list(islice(sids, _REPLAYED))
        subjects = self._subjects
        connection.send(
            b"".join(
                b"SUB %b %d\r\n" % (subject, sid)
                for sid in piece
                if (subject := subjects.get(sid)) is not None
            )
        )
        if len(piece) == _REPLAYED:
            asyncio.get_running_loop().call_soon(self._replay, connection, sids)
            return
        self.connected = True
        if not first:
            self._on_up()
        refused, self._refused = self._refused, []
        for refusal in refused:
            self._on_refused(refusal)

    def _confirm_leaving(self) -> None:
        leaving, self._leaving = self._leaving, []
        if not leaving or self._connection is None:
            return

        def left() -> None:
            for sid in leaving:
                del self._subjects[sid]

        self._connection.ping(left)

    def _given_up(self) -> None:
        if self._open:
            self._on_error(f"NATS at {self._where}: the connection was closed permanently")


def _refused(text: str) -> str | None:
    """Return the subject of a subscription that the server reports as refused."""
    match = _REFUSED.search(text)
    if match is None:
        return None
    try:
        subject: str = ast.literal_eval(match[1])  # Go quotes as Python does
    except (SyntaxError, ValueError):
        return None
    return subject


class _Client(Client):
    """nats-py's client over our transport.

    It uses private parts of nats-py, which no other class but ``DirectClient`` does: nats-py calls
    ``_connect_to_server`` to dial, uses the transport in ``_transport`` if there is one, and keeps
    the server's INFO in ``_server_info``.
    """

    def __init__(self, owner: BatchClient) -> None:
        super().__init__()
        self._owner = owner
        self.dialled: BatchConnection | None = None
        """The connection that was dialled last."""

    def check(self, where: str) -> None:
        """Raise NatsUnavailable if the connected server is too old, or accepts no headers."""
        check_server_version(str(self.connected_server_version), where=f"NATS at {where}")
        if not self._server_info.get("headers"):
            raise NatsUnavailable(
                f"NATS at {where} accepts no headers: set no_header_support = false there"
            )

    async def _connect_to_server(self, s: Any) -> None:
        if self.dialled is not None:
            self.dialled.abort()
        self._transport = self.dialled = BatchConnection(self._owner)
        await super()._connect_to_server(s)

    async def _attempt_reconnect(self) -> None:
        with suppress(asyncio.InvalidStateError):  # cancelled after the future it ends with was
            await super()._attempt_reconnect()
