"""Admission of clients to their sessions: the decisions between a login and its session.

The login has been verified (:mod:`actors.connection.admission`). Here a client gets an identifier
if it has none, and must own its session and have a permitted will; clients that keep taking over
one session wait.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import structlog

from actors.limits.address_networks import network_of
from actors.session.core import SessionCore
from actors.session.node_context import NodeContext
from actors.session.session_messages import ClientConnection, ConnectionAttached, ConnectRequest
from eventstore.format.events import API_SESSION, ASSIGNED_ID, LOG_SESSION, NATS_SESSION
from eventstore.format.name_entries import MARK
from eventstore.partitions import partition_of
from protocol.mqtt.message_properties import is_payload_format_broken
from protocol.mqtt.packets import Connect, ConnectCode
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from actors.connection.admission import Admission


_log = structlog.get_logger("foldmq")

_REFUSED_AT_ONCE = 64
"""Maximum number of connections that are refused in one iteration of the event loop."""

_LOOK_AGAIN = 0.1
"""Seconds between two checks whether clients that wait for the leadership can be admitted."""


class SessionAdmission:
    """Attaches the connections of verified clients to their sessions, or refuses them."""

    def __init__(self, node: NodeContext, admission: Admission) -> None:
        self._node = node
        self._admission = admission
        self._takeovers = TakeoverThrottle()
        self._waiting: dict[str, list[ConnectRequest]] = {}
        """Requests that wait because of the throttle, by client identifier, oldest first."""
        self._parked: list[ConnectRequest] = []
        """Requests that wait until this node knows that it leads its cluster, oldest first."""
        self.suspended = False
        """Whether clients are refused because the log could not be written for too long."""
        self.partition = 0, 1
        """The number of this log among the logs of the node, and their total number."""

    def handle(self, request: ConnectRequest) -> None:
        """Attach a connection to the session of its client, now or later, or refuse it."""
        connection, connect = request
        if connection.ended:
            return
        if self._is_in_doubt and not self._node.draining:
            if not self._parked:
                self._node.timers.after(_LOOK_AGAIN, self._admit_parked)
            self._parked.append(request)
            return
        if self._node.handing_over:
            connection.abort("broker_stopped")
            return
        if self.suspended or self._node.draining:
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "unavailable")
            return
        if not connect.client_id:
            connection.given_id = self._assigned_id()
            connect.client_id = self._admission.known_as(connection.given_id)
            connection.client_id = connect.client_id
            connection.id_assigned = True
        elif self._node.names is not None:  # it may have got a token meanwhile
            connect.client_id = self._admission.known_as(connection.given_id)
            connection.client_id = connect.client_id
        name = connect.client_id
        given_id = connection.given_id
        if _is_reserved(name) or _is_reserved(given_id):
            connection.refuse(ConnectCode.IDENTIFIER_REJECTED, "reserved_client_id")
            return
        if not self._owns(given_id if name == MARK else name):  # a token will belong to this log
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "other_partition")
            return
        if self._admission.refuses_other_user(connection, name):
            return
        session: SessionCore | None = self._node.directory.find_session(name)
        old = session.connection if session is not None else None
        if old is not None and self._is_contested(name, connection, old):
            _log.info(
                "two clients keep taking over the same client identifier",
                client=name,
                address=connection.address,
            )
            self._waiting.setdefault(name, []).append(request)
            self._node.timers.after(
                self._node.options.takeover_delay, lambda: self._release(request)
            )
            return
        if (
            name not in self._node.state.sessions
            and len(self._node.state.sessions) >= self._node.options.max_sessions
        ):
            now = self._node.clock.monotonic()
            self._admission.limits.refused.add(
                "sessions", now, client=name, address=connection.address
            )
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "too_many_sessions")
            return
        self._supersede(name)
        self._attach(request)

    @property
    def _is_in_doubt(self) -> bool:
        """Whether clients wait because this node may no longer lead its cluster."""
        return bool(self._node.unsure or (self.suspended and self._node.state.epoch))

    def _admit_parked(self) -> None:
        """Admit the clients that waited; the connections of those that wait too long are closed."""
        parked = [request for request in self._parked if not request.connection.ended]
        if parked and self._is_in_doubt and not self._node.draining:
            self._parked = parked
            self._node.timers.after(_LOOK_AGAIN, self._admit_parked)
        else:
            self._parked = []
            self._node.in_parts(parked, _REFUSED_AT_ONCE, self.handle)

    def _assigned_id(self) -> str:
        """Return a new client identifier whose session belongs to this log."""
        while True:
            client_id = f"{ASSIGNED_ID}{secrets.token_hex(10)}"
            if self._owns(self._admission.known_as(client_id)):
                return client_id

    def _owns(self, name: str) -> bool:
        """Return whether the session of a client, possibly a pseudonym, belongs to this log."""
        number, count = self.partition
        return count == 1 or partition_of(name, count) == number

    def _is_contested(self, name: str, new: ClientConnection, old: ClientConnection) -> bool:
        """Return whether clients keep taking over this session, so that the new one must wait."""
        now = self._node.clock.monotonic()
        holder = PreviousConnection(old.host, now - old.last_read)
        return self._takeovers.must_wait(
            name, new.host, holder, now, self._node.options.takeover_delay
        )

    def _release(self, request: ConnectRequest) -> None:
        """End the wait of a request."""
        name = request.connect.client_id
        waiting = self._waiting.get(name, [])
        if request not in waiting:  # a later connection was admitted meanwhile
            return
        waiting.remove(request)
        if not waiting:
            del self._waiting[name]
        if not request.connection.ended:
            self._attach(request)

    def _supersede(self, name: str) -> None:
        """Refuse the request that waits for a session that a later connection now gets."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._node.in_parts(waiting, _REFUSED_AT_ONCE, _refuse_superseded)

    def _attach(self, request: ConnectRequest) -> None:
        connection, connect = request
        if self._admission.refuses_other_user(
            connection, connect.client_id
        ):  # perhaps again, after a wait
            return
        self._node.permissions.grant(connection)
        denied_will = self._node.permissions.without_denied_will(connection, connect)
        if denied_will is not None and self._node.options.close_denied:
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "will_not_permitted")
            return
        if self._is_will_above_maximum_qos(connect):
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "will_qos")
            return
        if self._has_will_of_wrong_format(connect):
            self._node.limits.refused.add(
                "payload_format",
                self._node.clock.monotonic(),
                client=connect.client_id,
                address=connection.address,
            )
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "payload_format")
            return
        if not self._admission.names_client(connection, connect):
            return
        session = self._node.directory.session(request.connect.client_id)
        self._node.kernel.tell(session, ConnectionAttached(connection, connect, denied_will))

    def _is_will_above_maximum_qos(self, connect: Connect) -> bool:
        """Return whether an MQTT 5 client has a will above the Maximum QoS [MQTT-3.2.2-12]."""
        if connect.will is None or connect.properties is None:
            return False
        return connect.will.qos == 2 and self._node.options.reject_qos2_publish

    def _has_will_of_wrong_format(self, connect: Connect) -> bool:
        """Return whether a will is declared as UTF-8 but is not, if that is checked."""
        will = connect.will
        if will is None or not will.block or not self._node.options.check_payload_format:
            return False
        return is_payload_format_broken(will.block, will.payload)


def _refuse_superseded(request: ConnectRequest) -> None:
    connection = request.connection
    if not connection.ended:
        connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "taken_over")


def _is_reserved(client_id: str) -> bool:
    """Return whether a client identifier is reserved for the broker."""
    return client_id == NATS_SESSION or client_id.startswith((SHARE, LOG_SESSION, API_SESSION))


_IN_A_ROW = 12.0
"""Number of takeovers of one identifier that are attributed to a single client although they are
faster than one per ``takeover_delay``."""
_HOSTS = 8
"""Number of addresses remembered per identifier whose connection was taken over."""


class PreviousConnection(NamedTuple):
    """The current connection of the identifier."""

    host: str
    silence: float
    """Seconds since the last read after its CONNECT; infinite if there was none."""


class TakeoverThrottle:
    """Slows down clients that keep taking over one client identifier, but not a flapping network.

    A CONNECT with the client identifier of a connected client ends the earlier connection
    [MQTT-3.1.4-2]. If two clients share an identifier and reconnect immediately, neither can work,
    and each takeover writes events to disk. An address that comes back within two delays after
    another one threw it out waits, if the connection that it would end is in use. One from
    elsewhere, or one that comes back to a silent connection, is let in at once, up to twelve times
    in a row. Times are monotonic, in seconds; at most ``most`` identifiers are remembered.
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._known: dict[str, _Identifier] = {}
        """Identifiers, those with the oldest takeover first."""

    def __len__(self) -> int:
        """Return the number of remembered identifiers."""
        return len(self._known)

    def must_wait(
        self, name: str, host: str, old: PreviousConnection, now: float, takeover_delay: float
    ) -> bool:
        """Count a takeover of ``name`` by a client at ``host``; return whether it must wait.

        A new address is admitted. If the connection of an address was taken over from another one,
        and the address returns within twice ``takeover_delay``, it waits if the other connection is
        in use. Takeovers that may come from a single client are admitted up to a limit.
        """
        if not takeover_delay:
            return False
        identifier = self._known.pop(name, None) or _Identifier(now)
        self._known[name] = identifier
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        mine, other = network_of(host), network_of(old.host)
        since = identifier.disconnected.pop(mine, None)
        if mine != other:
            identifier.add_disconnected(other, now)
        back = since is not None and now - since < 2 * takeover_delay
        if mine != other and not back:
            return False
        fight = mine != other and old.silence < takeover_delay
        return identifier.takes(now, takeover_delay, fight=fight)


class _Identifier:
    """The recent takeovers of one identifier."""

    __slots__ = ("_left", "_since", "disconnected")

    def __init__(self, now: float) -> None:
        self._left = _IN_A_ROW
        self._since = now
        self.disconnected: dict[str, float] = {}
        """Addresses that lost their connection to another one, and when."""

    def add_disconnected(self, host: str, now: float) -> None:
        self.disconnected.pop(host, None)
        self.disconnected[host] = now
        if len(self.disconnected) > _HOSTS:
            del self.disconnected[next(iter(self.disconnected))]

    def takes(self, now: float, takeover_delay: float, *, fight: bool) -> bool:
        """Count a takeover; one is permitted per ``takeover_delay``.

        Returns whether it must wait.
        """
        allowance = min(_IN_A_ROW, self._left + (now - self._since) / takeover_delay)
        self._left = -1.0 if fight else max(-1.0, allowance - 1)
        self._since = now
        return self._left < 0
