"""Authorization of client actions: publications, subscriptions, wills and bridged messages.

Each refusal is counted, and some are logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.access.rules import BRIDGE
from actors.limits.address_networks import network_of
from actors.limits.rejection_log import RejectionLog
from actors.session.decisions.publish_admission import NOT_PERMITTED
from actors.session.decisions.queueing import dropped_unrecorded
from eventstore.display import escaped
from projections.state.history_fold import LONGEST_DENIED
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.topics import is_reserved_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.access.credentials import Verdict
    from actors.access.rules import Permissions, TopicAcl
    from actors.session.interfaces import ClientConnection
    from actors.session.node_context import NodeContext
    from projections.state.session import SessionState
    from protocol.mqtt.packets import Connect

_APPLIED_AT_ONCE = 64
"""Number of clients that get changed permissions in one iteration of the event loop."""


class Authorizer:
    """Decides which actions clients may perform; counts and logs refusals."""

    def __init__(self, node: NodeContext, permissions: Permissions) -> None:
        self.permissions: Permissions
        self.refused = RejectionLog("not permitted")
        """Counts and logs refusals by kind: publish, subscribe, will, bridge."""
        self.bridge: TopicAcl | None = None
        """The topics that may be exchanged with NATS; None: all."""
        self._node = node
        self.change(permissions)

    def change(self, permissions: Permissions) -> None:
        """Replace the permissions; connected clients get them with :meth:`apply`."""
        self.permissions = permissions
        bridge = permissions.access(BRIDGE, (), BRIDGE)
        self.bridge = None if bridge.open else bridge

    def apply(self, connections: Sequence[ClientConnection]) -> None:
        """Apply the current permissions to the clients of these connections, some at a time."""
        self._node.in_parts(connections, _APPLIED_AT_ONCE, self.apply_to)
        if self._node.bridge is not None:
            self._node.bridge.permissions_changed()

    def apply_to(self, connection: ClientConnection) -> None:
        """Apply the current permissions to the client of a connection."""
        self.grant(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            self._node.router.set_acl(session.name, connection.access)

    def grant(self, connection: ClientConnection) -> None:
        """Set the permissions of a connection whose client has just been authenticated."""
        verdict = connection.identity
        if verdict is not None:
            access = self.access_of(connection, verdict)
            connection.access = None if access.open else access

    def access_of(self, connection: ClientConnection, verdict: Verdict) -> TopicAcl:
        """Return the present permissions of an authenticated client."""
        user = None if verdict.claimed else verdict.user
        return self.permissions.access(user, verdict.groups, connection.given_id, verdict.rules)

    def without_denied_will(self, connection: ClientConnection, connect: Connect) -> str | None:
        """Remove a will without permission from a CONNECT; return its topic, None if none was."""
        will, access = connect.will, connection.access
        if will is None or access is None or access.may_publish(will.topic):
            return None
        self._log_denied("will", connect.client_id, will.topic, connection)
        connect.will = None
        return will.topic

    def authorize_will_on_publish(
        self, state: SessionState, connection: ClientConnection | None, topic: str
    ) -> bool:
        """Return whether a session's will, permitted when it was armed, may still be published.

        The log is the only source about a client that connected before the broker restarted. If
        permissions do not only come from the permission file, or if pseudonyms replace client
        identifiers, the will is published unless its topic is denied to all clients.
        """
        if connection is not None:
            access = connection.access
            return access is None or self._permits_will(access, state, topic, connection)
        options = self._node.options
        if not options.users_elsewhere and not options.pseudonym_key:
            access = self.permissions.access(state.user, (), state.session)
            return self._permits_will(access, state, topic, None)
        # It is not known whether the will is allowed, only whether it is denied to all clients.
        if self.permissions.access(None, (), "").forbids(topic):
            self._log_denied("will", state.session, topic, None)
            return False
        return True

    def _permits_will(
        self, access: TopicAcl, state: SessionState, topic: str, connection: ClientConnection | None
    ) -> bool:
        if access.may_publish(topic):
            return True
        self._log_denied("will", state.session, topic, connection)
        return False

    def deny_publish(
        self, session: str, connection: ClientConnection, topics: Sequence[bytes], *, recorded: bool
    ) -> None:
        """Count messages that a client may not publish; record that if they would have been."""
        node, count = self._node, len(topics)
        self._log_denied("publish", session, topics[0].decode(), connection, count)
        if recorded:
            node.emit(dropped_unrecorded(session, NOT_PERMITTED, topics))
        node.dropped[NOT_PERMITTED] += count
        node.clients.dropped(session, NOT_PERMITTED, count, node.clock.time_ms())

    def refuses(self, connection: ClientConnection, topic_filter: str) -> int:
        """Return the reason code with which a subscription is refused; 0: it is permitted.

        The number of subscriptions is not checked.
        """
        if is_reserved_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        reason = self._node.limits.topics.refuses_filter(topic_filter, 0, new=False)
        if reason == "wildcards" and connection.deep_filter in (None, topic_filter):
            reason = None  # the standard has no such limit, and here it is not needed
            connection.deep_filter = topic_filter
        if reason is not None:
            now = self._node.clock.monotonic()
            self._node.limits.refused.add(reason, now, client=connection.client_id)
            return ReasonCode.QUOTA_EXCEEDED
        access = connection.access
        if access is not None and not access.may_subscribe(topic_filter):
            self._log_denied("subscribe", connection.client_id, topic_filter, connection)
            return ReasonCode.NOT_AUTHORIZED
        return 0

    def allows_pattern(
        self, session: str, connection: ClientConnection, topic_filter: str, fresh: set[int]
    ) -> bool:
        """Return whether a session may add a filter with this wildcard pattern.

        ``fresh`` are patterns granted to the session that are not in the index yet.
        """
        topics, owner = self._node.limits.topics, owner_of(connection)
        return self._node.router.patterns.allows(
            session, owner, topic_filter, fresh, topics.patterns, topics.patterns_in_all
        )

    def to_nats(self, topic: bytes) -> bool:
        """Return whether messages on a topic may be sent to NATS."""
        return self.bridge is None or self.bridge.read[topic]

    def from_nats(self, topic: bytes) -> bool:
        """Return whether a message received from NATS may be published."""
        if self.bridge is None or self.bridge.publish[topic]:
            return True
        self._log_denied("bridge", BRIDGE, topic.decode(), None)
        return False

    def _log_denied(
        self,
        what: str,
        client: str | None,
        topic: str,
        connection: ClientConnection | None,
        count: int = 1,
    ) -> None:
        about: dict[str, str | None] = {}
        if connection is not None:
            about["address"] = connection.address
            about["user"] = connection.identity.user if connection.identity is not None else None
        topic = escaped(topic, LONGEST_DENIED)
        if client is not None:
            now_ms, user = self._node.clock.time_ms(), self._denied_as(connection)
            self._node.clients.denied(client, what, topic, count, now_ms, user)
        now = self._node.clock.monotonic()
        self.refused.add(what, now, count, client=client, topic=topic, **about)

    def _denied_as(
        self, connection: ClientConnection | None
    ) -> tuple[str | None, tuple[str, ...]] | None:
        """Return the user and groups for which the permission file denied an action.

        None: other rules denied it, or the identifier that they apply to is hidden.
        """
        verdict = connection.identity if connection is not None else None
        if verdict is None or verdict.rules is not None or self._node.options.pseudonym_key:
            return None
        return None if verdict.claimed else verdict.user, verdict.groups


def owner_of(connection: ClientConnection) -> str:
    """Return the user or network to which a client's share of limits for all sessions counts."""
    verdict = connection.identity
    if verdict is not None and verdict.user is not None and not verdict.claimed:
        return f"user {verdict.user}"
    return network_of(connection.host)
