"""Handles a connection from its first bytes to the verdict on its CONNECT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.authn import LOCKED_OUT
from actors.connection.enhanced_login import EnhancedLogin
from actors.node import ReadPause
from actors.session import ConnectRequest
from eventstore.display import escaped
from protocol.mqtt import Auth, Connect, ConnectCode, Disconnect, ReasonCode

if TYPE_CHECKING:
    import asyncio

    from actors.authn import Credentials, Outcome, Verdict
    from actors.connection.connection import Connection
    from actors.session import NodeContext
    from protocol.mqtt import ConnectProperties, Packet

_SHOWN = 200
"""Characters of a name in a line of the log."""
_MAX_UNREAD = 1024 * 1024
"""Bytes that may come in before the CONNECT is answered."""

_LATE = 1.0
"""Seconds that a client gets when its time is over and the broker has not handled all it sent."""


class ConnectHandshake:
    """What a connection has until its CONNECT is accepted: its client is not known."""

    __slots__ = (
        "__weakref__",
        "_below",
        "_connect",
        "_connection",
        "_done",
        "_early",
        "_login",
        "_node",
        "_seen",
        "_size",
        "_task",
        "authenticating",
        "began",
        "server_final",
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
        """The CONNECT has come, and is being looked at; False while the client has to answer."""
        self._connect: Connect | None = None
        self._login: EnhancedLogin | None = None
        """The exchange of AUTH packets; None for a CONNECT without an Authentication Method."""
        self._done = False
        """It is decided: the client has to wait for its CONNACK."""
        self.server_final: bytes | None = None
        """What the method has for the CONNACK."""

    def expect_connect(self) -> None:
        """Close the connection if no CONNECT is accepted within ``connect_timeout``."""
        allowed = self._connection.listener.options.connect_timeout
        self._connection.timers.remind(allowed, self._connect_deadline)

    def _connect_deadline(self) -> None:
        """Close a connection without an accepted CONNECT; its waits for the broker do not count."""
        connection = self._connection
        if connection.ended or connection.session is not None:
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
        """Count what is kept for unauthenticated connections; it may end this connection."""
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
        if self._login is not None:
            self._login.give_up()
            self._login = None  # it refers to this object

    # Whose it is.

    def begin(self, packets: list[Packet]) -> None:
        """Handle the first packets: a CONNECT, and perhaps what came with it; or what follows."""
        if self._login is not None:
            self._take_answer(self._login, packets)
            return
        connect = packets[0]
        if not isinstance(connect, Connect):
            return
        node, connection = self._node, self._connection
        admission = connection.listener.admission
        self.authenticating = True
        if len(packets) > 1:
            self.keep(packets[1:])
        connection.given_id, connection.properties = connect.client_id, connect.properties
        credentials = connection.credentials(connect.username, connect.password)
        connect.client_id = connection.client_id = admission.known_as(connect.client_id)
        if admission.on_connect is not None:
            admission.on_connect(connection, packets)
        node.counters.packets_in += 1
        node.counters.connects += 1
        connect.password = None
        if connect.properties is not None and connect.properties.authentication_method is not None:
            self._begin_exchange(connect, connect.properties, credentials)
            return
        verdict = admission.authenticator.check_now(credentials)
        if verdict is None:
            self._task = admission.authenticate(connection, connect, credentials)
        else:
            self.decided(connect, verdict)

    # Enhanced authentication: actors.connection.enhanced_login.LoginOwner.

    def _begin_exchange(
        self, connect: Connect, properties: ConnectProperties, credentials: Credentials
    ) -> None:
        """Authenticate a client by the method that its CONNECT names."""
        connection, method = self._connection, properties.authentication_method or ""
        data, properties.authentication_data = properties.authentication_data, None
        authenticator = connection.listener.admission.authenticator
        exchange = authenticator.begin_exchange(method, credentials)
        if exchange is None:
            self._node.limits.unwelcome.add(
                "authentication_method",
                connection.now,
                method=escaped(method, _SHOWN),
                client=escaped(connect.client_id, _SHOWN),
                address=connection.address,
            )
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "authentication_method")
            return
        self._connect = connect
        self._login = EnhancedLogin(self._node, connection, self, exchange)
        self._login.take(data)

    def _take_answer(self, login: EnhancedLogin, packets: list[Packet]) -> None:
        """Handle what comes before the CONNACK: nothing but AUTH and DISCONNECT may."""
        connection, packet = self._connection, packets[0]
        self._node.counters.took(connection, packets[:1])
        if type(packet) is Disconnect:
            connection.leave(packet)
        elif type(packet) is not Auth:
            connection.end_after_violation("a packet before CONNACK that is not AUTH")
        elif self._done or packet.reason != ReasonCode.CONTINUE_AUTHENTICATION:
            connection.end_after_violation("AUTH before CONNACK that answers no challenge")
        else:
            self.authenticating = True
            if len(packets) > 1:
                self.keep(packets[1:])
            login.take(packet.data)

    def challenged(self) -> None:
        """Accept the next AUTH of the client: it was sent a challenge."""
        self.take_kept(done=False)

    def concluded(self, outcome: Outcome) -> None:
        """Go on with the CONNECT."""
        connect, login = self._connect, self._login
        if connect is None or login is None:
            return
        if outcome.verdict.accepted:
            self.take_kept(done=True)
        elif connect.username is None:
            connect.username = login.user  # for the line in the log
        self.server_final = outcome.data
        self.decided(connect, outcome.verdict)

    def exceeded(self, limit: str) -> None:
        """Refuse a client that reached a limit."""
        connection = self._connection
        if limit == "too_many_logins":
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, limit)
            return
        connection.count_fault(limit)
        connection.refuse(ConnectCode.NOT_AUTHORIZED, limit)

    def take_kept(self, *, done: bool) -> None:
        """Take what a client with an Authentication Method sent while its login was looked at.

        ``done``: the login is decided, so that anything but DISCONNECT came too early
        [MQTT-3.1.2-30].
        """
        connection = self._connection
        self._done, self.authenticating = done, False
        early, self._early, self._size = self._early, [], 0
        for part in early:
            if connection.ended:
                return
            if isinstance(part, bytes):
                connection.take(part)
            elif self.authenticating:
                self.keep(part)
            else:
                self.begin(part)
        if not self.authenticating and not connection.ended:
            connection.take_more()
        self.authenticating = self.authenticating or done

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
            limits.refused.add("login_backoff", now, client=client, address=where, user=user)
        else:
            why = verdict.reason or verdict.result.name.lower()
            limits.unwelcome.add("login", now, why=why, client=client, address=where, user=user)
