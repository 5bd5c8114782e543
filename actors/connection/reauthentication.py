"""Re-authentication of connected clients (MQTT 5, section 4.12.1).

All other packets are handled meanwhile, with the earlier permissions. A client that fails is
disconnected; its session stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import structlog

from actors.access.credentials import AuthResult, Verdict
from actors.access.enhanced import Outcome
from actors.connection.core import ConnectionCore
from actors.connection.enhanced_login import EnhancedLogin
from actors.session.node_context import NodeContext
from actors.session.session_messages import ClientConnection
from eventstore.display import escaped
from protocol.mqtt.packets import Auth
from protocol.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from actors.connection.admission import Admission

_log = structlog.get_logger("foldmq")

_MINUTE: Final = 60.0
_CLOSED: Final = "reauthentication_failed"
"""Close reason after a failed re-authentication."""
_LIMITS: Final = {
    "packet_too_large": ReasonCode.PACKET_TOO_LARGE,
    "too_many_logins": ReasonCode.SERVER_BUSY,
}
"""Reason codes of exceeded limits; 0x97 for all others."""


class Reauthentication:
    """The re-authentications of one client whose CONNECT named a method."""

    __slots__ = ("_admission", "_began", "_connection", "_count", "_due", "_login", "_node")

    def __init__(self, node: NodeContext, connection: ConnectionCore, admission: Admission) -> None:
        self._node = node
        self._admission = admission
        self._connection = connection
        self._login: EnhancedLogin | None = None
        self._due = 0.0
        """When the re-authentication must be complete, in seconds of the broker's clock."""
        self._began = 0.0
        """Start of the minute in which re-authentications are counted."""
        self._count = 0

    @property
    def _user(self) -> str | None:
        identity = self._connection.identity
        return None if identity is None else identity.user

    def on_auth(self, packet: Auth) -> None:
        """Handle an AUTH of the client."""
        connection, login = self._connection, self._login
        if connection.ended:
            return
        if packet.reason == ReasonCode.CONTINUE_AUTHENTICATION:
            if login is None or not login.open:
                connection.end_after_violation("AUTH 0x18 that answers no challenge")
            else:
                login.advance(packet.data)
        elif login is not None:
            connection.end_after_violation("AUTH 0x19 during another re-authentication")
        elif self._is_too_often():
            self.exceeded("reauthentications")
        else:
            self._begin(packet)

    def _is_too_often(self) -> bool:
        most, now = self._node.options.bounds.max_reauthentications, self._connection.now
        if now - self._began >= _MINUTE:
            self._began, self._count = now, 0
        self._count += 1
        return bool(most) and self._count > most

    def _begin(self, packet: Auth) -> None:
        connection = self._connection
        exchange = self._admission.authenticator.begin_exchange(
            packet.method, connection.credentials(self._user), reauthenticates=True
        )
        if exchange is None:  # a reload removed the method
            self._fail("the method is no longer configured", ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        allowed = connection.listener.options.connect_timeout
        self._due = connection.now + allowed
        connection.start_timer(connection.timers, allowed, self._deadline)
        self._login = EnhancedLogin(self._node, connection, self._admission, self, exchange)
        self._login.advance(packet.data)

    def _deadline(self) -> None:
        """Close the connection if the re-authentication is not complete in time."""
        connection = self._connection
        if self._login is None or connection.ended:
            return
        remaining_seconds = self._due - connection.now
        if remaining_seconds > 0:  # this timer belongs to an earlier re-authentication
            connection.start_timer(connection.timers, remaining_seconds, self._deadline)
            return
        if self._login.open:
            self._node.limits.count_fault(connection.host, connection.now)
        self._fail("not authenticated in time", ReasonCode.NOT_AUTHORIZED)

    # The methods of actors.connection.enhanced_login.LoginOwner.

    def challenged(self) -> None:
        """Wait for the client."""

    def concluded(self, outcome: Outcome) -> None:
        """Apply the new login, or close the connection."""
        connection, verdict = self._connection, outcome.verdict
        if not verdict.accepted:
            away = verdict.result is AuthResult.UNAVAILABLE
            code = ReasonCode.SERVER_BUSY if away else ReasonCode.NOT_AUTHORIZED
            self._fail(verdict.reason or verdict.result.name.lower(), code)
        elif verdict.user != self._user:
            self._fail("it names another user", ReasonCode.NOT_AUTHORIZED, "other_user", verdict)
        elif not self._admission.is_valid(verdict):
            self._fail("the users changed meanwhile", ReasonCode.NOT_AUTHORIZED)
        else:
            login, self._login = self._login, None
            if login is None or not login.send(ReasonCode.SUCCESS, outcome.data):
                return
            connection.identify(verdict)
            self._node.permissions.apply_to(cast("ClientConnection", connection))
            self._node.counters.reauthentications["accepted"] += 1
            user = self._node.user_in_log(verdict.user)
            _log.debug("authenticated again", client=connection.client_id, user=user)

    def exceeded(self, limit: str) -> None:
        """Close the connection of a client that exceeded a limit."""
        code = _LIMITS.get(limit, ReasonCode.QUOTA_EXCEEDED)
        if code == ReasonCode.QUOTA_EXCEEDED:
            self._node.limits.count_fault(self._connection.host, self._connection.now)
        self._fail(f"limit reached: {limit}", code, limit)

    def _fail(
        self,
        why: str,
        code: ReasonCode,
        counted: str = "reauthentication",
        verdict: Verdict | None = None,
    ) -> None:
        """Count, log and close."""
        connection = self._connection
        identity = connection.identity if verdict is None else verdict
        user = self._node.user_in_log(identity.user) if identity is not None else None
        self._node.limits.reauthentications.add(
            counted,
            connection.now,
            why=why,
            client=connection.client_id,
            address=connection.address,
            user=None if user is None else escaped(user, 200),
        )
        self._node.counters.reauthentications["refused"] += 1
        self.give_up()
        connection.close(_CLOSED, code)

    def give_up(self) -> None:
        """Cancel a re-authentication: the connection is closed."""
        login, self._login = self._login, None
        if login is not None:
            login.give_up()
