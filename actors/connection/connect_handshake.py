"""Handles a connection from its first bytes to the verdict on its CONNECT."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from actors.access.backend_selection import LOCKED_OUT
from actors.access.credentials import Credentials, Verdict
from actors.access.enhanced import Outcome
from actors.connection.core import ConnectionCore
from actors.connection.enhanced_login import EnhancedLogin
from actors.kernel.clock import Timer
from actors.node.read_pause import ReadPause
from actors.session.node_context import NodeContext
from actors.session.session_messages import ClientConnection, ConnectRequest
from eventstore.display import escaped
from protocol.mqtt.origin_properties import log_of
from protocol.mqtt.packets import Auth, Connect, ConnectCode, ConnectProperties, Disconnect, Packet
from protocol.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    import asyncio

    from actors.connection.admission import Admission

_SHOWN = 200
"""Maximum characters of a name in a log line."""
_MAX_UNREAD = 1024 * 1024
"""Bytes buffered before the CONNECT is answered above which reading pauses."""

_LATE = 1.0
"""Seconds of grace after the deadline while the broker has not handled all received bytes."""


class ConnectHandshake:
    """State of a connection until its CONNECT is accepted: the client is not known yet."""

    __slots__ = (
        "_admission",
        "_below",
        "_connect",
        "_connection",
        "_deadline_timer",
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

    def __init__(self, node: NodeContext, connection: ConnectionCore, admission: Admission) -> None:
        self._node = node
        self._admission = admission
        self._connection = connection
        self._below = 0
        """Bytes read by the stages below."""
        self._seen = 0
        """Bytes received by the connection."""
        self._deadline_timer: Timer | None = None
        self._early: list[bytes | list[Packet]] = []
        self._size = 0
        """Bytes that are buffered and not decoded before the CONNECT is answered."""
        self._task: asyncio.Task[None] | None = None
        self.began = node.clock.monotonic()
        """When the client connected, in seconds of the broker's clock."""
        self.authenticating = False
        """Whether the CONNECT is being verified; False while the client has to answer a
        challenge."""
        self._connect: Connect | None = None
        self._login: EnhancedLogin | None = None
        """The exchange of AUTH packets; None for a CONNECT without an Authentication Method."""
        self._done = False
        """Whether the login is decided: the client has to wait for its CONNACK."""
        self.server_final: bytes | None = None
        """Authentication Data of the method for the CONNACK."""

    def expect_connect(self) -> None:
        """Close the connection if no CONNECT is accepted within ``connect_timeout``.

        The time that the client waited at the node that passes it on counts as well.
        """
        waited = self._connection.waited
        self.began -= waited
        allowed = self._connection.listener.options.connect_timeout
        self._set_deadline(max(0.0, allowed - waited))

    def _connect_deadline(self) -> None:
        """Close a connection without an accepted CONNECT; delays of the broker do not count."""
        connection = self._connection
        if connection.ended or connection.session is not None:
            return
        if connection.unhandled:
            # The CONNECT may have arrived, but is not handled yet.
            self._set_deadline(_LATE)
            return
        allowed = connection.listener.options.connect_timeout
        # A login that is being verified has its CONNECT in time: others are verified before it.
        verifies = self.authenticating and not self._done
        kept = allowed if verifies else min(connection.kept_waiting, allowed)
        now = connection.now
        remaining_seconds = self.began + allowed + kept - now
        if remaining_seconds > 0:
            self._set_deadline(remaining_seconds)
            return
        limits, reason = self._node.limits, "not_served"
        if not self.authenticating and max(kept, 2 * connection.waited) < allowed:
            # It was not the broker that took most of the time.
            limits.count_fault(connection.host, now)
            reason = "connect_timeout"
        limits.late.add(reason, now, client=connection.client_id, address=connection.address)
        connection.close("connect_timeout")

    def _set_deadline(self, seconds: float) -> None:
        connection = self._connection
        self._deadline_timer = connection.start_timer(
            connection.timers, seconds, self._connect_deadline
        )

    def cancel_deadline(self) -> None:
        """Cancel the deadline: the CONNECT is accepted."""
        timer, self._deadline_timer = self._deadline_timer, None
        if timer is not None:
            timer.cancel()

    # Input before the CONNACK.

    def saw(self, size: int) -> None:
        """Count bytes received by the connection, which may be buffered."""
        self._seen += size
        self.hold()

    def saw_below(self, size: int) -> None:
        """Count bytes read by a stage, which may be buffered."""
        self._below += size
        self.hold()

    @property
    def untouched(self) -> bool:
        """Whether nothing was received yet, by the stages below neither."""
        return not self._seen and not self._below

    def hold(self) -> None:
        """Update the bytes buffered for this connection, which is closed if they are too many."""
        self._admission.hold(self._connection, max(self._below, self._seen))

    def keep(self, part: bytes | list[Packet]) -> None:
        """Buffer input that precedes the answer to the CONNECT, within limits."""
        self._early.append(part)
        if isinstance(part, bytes):
            self._size += len(part)
            if self._size > _MAX_UNREAD:
                self._connection.pause(ReadPause.CONNECT)

    def early(self) -> tuple[list[list[Packet]], bytes]:
        """Return the buffered input: packets, and the bytes after them."""
        packets = [part for part in self._early if not isinstance(part, bytes)]
        return packets, b"".join(part for part in self._early if isinstance(part, bytes))

    def give_up(self) -> None:
        """Cancel the login: the client has disconnected."""
        self._early = []
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._login is not None:
            self._login.give_up()
            self._login = None  # it refers to this object

    # The login.

    def begin(self, packets: list[Packet]) -> None:
        """Handle the first packets, CONNECT and those after it; or later ones of a login."""
        if self._login is not None:
            self._on_answer(self._login, packets)
            return
        connect = packets[0]
        if not isinstance(connect, Connect):
            return
        node, connection, admission = self._node, self._connection, self._admission
        self.authenticating = True
        if len(packets) > 1:
            self.keep(packets[1:])
        connection.given_id, connection.properties = connect.client_id, connect.properties
        credentials = connection.credentials(connect.username, connect.password)
        connect.client_id = connection.client_id = admission.known_as(connect.client_id)
        connect.username = node.user_in_log(connect.username)
        if node.names is not None and connect.properties is not None:
            # The others may name a person; nothing uses them.
            user = connect.properties.user
            connect.properties.user = tuple(pair for pair in user if log_of([pair]) is not None)
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
        """Authenticate a client by the method in its CONNECT."""
        connection, method = self._connection, properties.authentication_method or ""
        data, properties.authentication_data = properties.authentication_data, None
        exchange = self._admission.authenticator.begin_exchange(method, credentials)
        if exchange is None:
            self._node.limits.rejected.add(
                "authentication_method",
                connection.now,
                method=escaped(method, _SHOWN),
                client=escaped(connect.client_id, _SHOWN),
                address=connection.address,
            )
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "authentication_method")
            return
        self._connect = connect
        self._login = EnhancedLogin(self._node, connection, self._admission, self, exchange)
        self._login.advance(data)

    def _on_answer(self, login: EnhancedLogin, packets: list[Packet]) -> None:
        """Handle packets that precede the CONNACK: only AUTH and DISCONNECT are permitted."""
        connection, packet = self._connection, packets[0]
        self._node.counters.count_received(connection, packets[:1])
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
            login.advance(packet.data)

    def challenged(self) -> None:
        """Accept the next AUTH of the client, to which a challenge was sent."""
        self._connection.resume(ReadPause.LOG)
        self.feed_kept(is_decided=False)

    def concluded(self, outcome: Outcome) -> None:
        """Continue with the CONNECT."""
        connect, login = self._connect, self._login
        if connect is None or login is None:
            return
        if outcome.verdict.accepted:
            self.feed_kept(is_decided=True)
        elif connect.username is None:
            connect.username = self._node.user_in_log(login.user)  # for the log line
        self.server_final = outcome.data
        self.decided(connect, outcome.verdict)

    def exceeded(self, limit: str) -> None:
        """Refuse a client that exceeded a limit."""
        connection = self._connection
        if limit == "too_many_logins":
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, limit)
            return
        connection.count_fault(limit)
        connection.refuse(ConnectCode.NOT_AUTHORIZED, limit)

    def feed_kept(self, *, is_decided: bool) -> None:
        """Process the input that was buffered during a login with an Authentication Method.

        ``is_decided``: any packet other than DISCONNECT has arrived too early [MQTT-3.1.2-30].
        """
        connection = self._connection
        self._done, self.authenticating = is_decided, False
        early, self._early, self._size = self._early, [], 0
        for part in early:
            if connection.ended:
                return
            if isinstance(part, bytes):
                connection.feed(part)
            elif self.authenticating:
                self.keep(part)
            else:
                self.begin(part)
        if not self.authenticating and not connection.ended:
            connection.feed_more()
        self.authenticating = self.authenticating or is_decided

    def decided(self, connect: Connect, verdict: Verdict) -> None:
        """Continue with a CONNECT after the verdict on its login."""
        connection = self._connection
        if connection.ended:
            return
        self._done = True
        if not verdict.accepted:
            self._log_rejected(connect, verdict)
            connection.refuse(ConnectCode(int(verdict.result)), "not_authorised")
            return
        connection.identify(verdict)
        if self._admission.identified(connection, connect):
            request = ConnectRequest(cast("ClientConnection", connection), connect)
            connection.kernel.tell(self._node.root, request)

    def _log_rejected(self, connect: Connect, verdict: Verdict) -> None:
        """Log a rejected login; repeated ones are counted."""
        limits, now = self._node.limits, self._connection.now
        user = None if connect.username is None else escaped(connect.username, _SHOWN)
        client = escaped(connect.client_id, _SHOWN)
        where = self._connection.address
        if verdict is LOCKED_OUT:
            limits.refused.add("login_backoff", now, client=client, address=where, user=user)
        else:
            why = verdict.reason or verdict.result.name.lower()
            limits.rejected.add("login", now, why=why, client=client, address=where, user=user)
