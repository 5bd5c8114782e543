"""A client's way in: from what it sends first to the verdict about its CONNECT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.authn import LOCKED_OUT, Credentials
from actors.node import ReadPause
from actors.session import ConnectRequest
from actors.transports import identity
from eventstore.display import escaped
from protocol.mqtt import Connect, ConnectCode

if TYPE_CHECKING:
    import asyncio

    from actors.authn import Verdict
    from actors.connection.connection import Connection
    from actors.session import NodeContext
    from protocol.mqtt import Packet

_SHOWN = 200
"""Characters of a name in a line of the log."""
_MAX_UNREAD = 1024 * 1024
"""Bytes that may come in before the CONNECT is answered."""

_LATE = 1.0
"""Seconds that a client gets when its time is over and the broker has not handled all it sent."""


class ConnectHandshake:
    """What a connection has until its CONNECT is accepted: nobody knows whose it is."""

    __slots__ = (
        "__weakref__",
        "_below",
        "_connection",
        "_early",
        "_node",
        "_seen",
        "_size",
        "_task",
        "authenticating",
        "began",
    )

    def __init__(self, node: NodeContext, connection: Connection) -> None:
        self._node = node
        self._connection = connection
        self._below = 0
        """Bytes that stages below read."""
        self._seen = 0
        """Bytes that the connection was given."""
        self._early: list[bytes | list[Packet]] = []
        self._size = 0
        """Bytes of that which are not packets yet."""
        self._task: asyncio.Task[None] | None = None
        self.began = node.clock.monotonic()
        """When the connection was accepted, seconds of the broker's clock."""
        self.authenticating = False
        """The CONNECT has come, and is being looked at."""

    def expect_connect(self) -> None:
        """Close the connection if no CONNECT is accepted within ``connect_timeout``."""
        allowed = self._connection.listener.options.connect_timeout
        self._connection.timers.remind(allowed, self._connect_deadline)

    def _connect_deadline(self) -> None:
        """Close a connection without an accepted CONNECT; its waits for the broker do not count."""
        connection = self._connection
        if connection.ended:
            return
        if connection.unhandled:
            # The CONNECT may have come: the broker has not handled it yet.
            connection.timers.remind(_LATE, self._connect_deadline)
            return
        allowed = connection.listener.options.connect_timeout
        kept = min(connection.kept_waiting, allowed)
        now = connection.now
        left = self.began + allowed + kept - now
        if left > 0:
            connection.timers.remind(left, self._connect_deadline)
            return
        limits = self._node.limits
        limits.late.add(
            "connect_timeout", now, client=connection.client_id, address=connection.address
        )
        if not self.authenticating and kept < allowed:
            limits.count_fault(connection.host, now)
        connection.close("connect_timeout")

    # How much there is of it.

    def saw(self, size: int) -> None:
        """Count bytes that the connection was given, and that may be kept in memory."""
        self._seen += size
        self.hold()

    def saw_below(self, size: int) -> None:
        """Count bytes that a stage read, and that may be kept in memory."""
        self._below += size
        self.hold()

    def hold(self) -> None:
        """Count what is kept among that of all who are not known yet; it may end the connection."""
        self._connection.listener.admission.hold(self._connection, max(self._below, self._seen))

    def keep(self, part: bytes | list[Packet]) -> None:
        """Keep what a client sends before its CONNECT is answered; it may, within bounds."""
        self._early.append(part)
        if isinstance(part, bytes):
            self._size += len(part)
            if self._size > _MAX_UNREAD:
                self._connection.pause(ReadPause.CONNECT)

    def early(self) -> tuple[list[list[Packet]], bytes]:
        """Return what was kept: packets, and behind them bytes."""
        packets = [part for part in self._early if not isinstance(part, bytes)]
        return packets, b"".join(part for part in self._early if isinstance(part, bytes))

    def give_up(self) -> None:
        """Cancel the login: the client has gone."""
        self._early = []
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Whose it is.

    def begin(self, packets: list[Packet]) -> None:
        """Handle the first packets: a CONNECT, and perhaps what came with it."""
        connect = packets[0]
        if not isinstance(connect, Connect):
            return
        node, connection = self._node, self._connection
        admission = connection.listener.admission
        self.authenticating = True
        if len(packets) > 1:
            self.keep(packets[1:])
        connection.given_id, connection.properties = connect.client_id, connect.properties
        if connect.properties is not None and connect.properties.authentication_method is not None:
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "authentication_method")
            return
        credentials = self._credentials(connect)
        connect.client_id = connection.client_id = admission.known_as(connect.client_id)
        if admission.on_connect is not None:
            admission.on_connect(connection, packets)
        node.counters.packets_in += 1
        node.counters.connects += 1
        connect.password = None
        verdict = admission.authenticator.check_now(credentials)
        if verdict is None:
            self._task = admission.authenticate(connection, connect, credentials)
        else:
            self.decided(connect, verdict)

    def _credentials(self, connect: Connect) -> Credentials:
        connection = self._connection
        options, certified = connection.listener.options, None
        if options.identity is not None:
            certified = identity(connection.peer_certificate, options.identity)
        return Credentials(
            connect.username,
            connect.password,
            connect.client_id,
            connection.host,
            options.name,
            options.allow_anonymous,
            certified,
        )

    def decided(self, connect: Connect, verdict: Verdict) -> None:
        """Go on with a CONNECT of which it was decided whether it may be."""
        connection = self._connection
        if connection.ended:
            return
        if not verdict.accepted:
            self._log_rejected(connect, verdict)
            connection.refuse(ConnectCode(int(verdict.result)), "not_authorised")
            return
        connection.identify(verdict)
        if connection.listener.admission.identified(connection, connect):
            connection.kernel.tell(self._node.root, ConnectRequest(connection, connect))

    def _log_rejected(self, connect: Connect, verdict: Verdict) -> None:
        """Log a refused login; repeated ones are counted."""
        limits, now = self._node.limits, self._connection.now
        user = None if connect.username is None else escaped(connect.username, _SHOWN)
        client = escaped(connect.client_id, _SHOWN)
        where = self._connection.address
        if verdict is LOCKED_OUT:
            limits.refused.add("jailed_login", now, client=client, address=where, user=user)
        else:
            why = verdict.reason or verdict.result.name.lower()
            limits.unwelcome.add("login", now, why=why, client=client, address=where, user=user)
