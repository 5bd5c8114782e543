"""Where permissions meet what clients do: publications, subscriptions, wills, the bridge.

Each refusal is counted, and some are logged.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from actors.authz import BRIDGE
from actors.limits import RejectionLog, network_of
from actors.session.publisher import select
from eventstore.display import escaped
from eventstore.format import MessageDropped
from protocol.mqtt import ReasonCode, is_reserved_filter

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from actors.authz import Permissions, TopicAcl
    from actors.session.interfaces import ClientConnection
    from actors.session.node_context import NodeContext
    from projections.state import SessionState
    from protocol.mqtt import Connect, Publishes

_SHOWN = 200
"""Characters of a topic in a line of the log."""
_RECORDED, _MOST_RECORDED = 1024, 8
"""Characters of a denied topic in an event, and the number of such topics."""


class Authorizer:
    """Says what clients may do, and refuses the rest."""

    def __init__(self, node: NodeContext, permissions: Permissions) -> None:
        self.permissions: Permissions
        self.refused = RejectionLog("not permitted")
        """By what was asked for: publish, subscribe, will, bridge."""
        self.bridge: TopicAcl | None = None
        """What may be exchanged with NATS; None: everything."""
        self._node = node
        self.change(permissions)

    def change(self, permissions: Permissions) -> None:
        """Set other permissions; connected clients get them with :meth:`apply`."""
        self.permissions = permissions
        bridge = permissions.access(BRIDGE, (), BRIDGE)
        self.bridge = None if bridge.open else bridge

    def apply(self, connections: Iterable[ClientConnection]) -> None:
        """Let the clients of these connections have what they may have now, and nothing else."""
        for connection in connections:
            self.apply_to(connection)
        if self._node.bridge is not None:
            self._node.bridge.permissions_changed()

    def apply_to(self, connection: ClientConnection) -> None:
        """Let a client have what it may have now, and nothing else."""
        self.grant(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            self._node.router.set_acl(session.name, connection.access)

    def grant(self, connection: ClientConnection) -> None:
        """Give a connection the permissions of its client, which is authenticated now."""
        verdict = connection.identity
        if verdict is None:
            return
        user = None if verdict.claimed else verdict.user
        access = self.permissions.access(user, verdict.groups, connection.given_id, verdict.rules)
        connection.access = None if access.open else access

    def authorize_will(self, connection: ClientConnection, connect: Connect) -> bool:
        """Say whether a CONNECT may go on; a will that it may not have is taken off it."""
        will, access = connect.will, connection.access
        if will is None or access is None or access.may_publish(will.topic):
            return True
        self._tell("will", connect.client_id, will.topic, connection)
        connect.will = None
        return not self._node.options.close_denied

    def authorize_will_on_publish(
        self, state: SessionState, connection: ClientConnection | None, topic: str
    ) -> bool:
        """Say whether a session's will may be published now; it could when it was armed.

        Of a client that was connected before the broker started again, no more is known than the
        log has: where others than the permission file say what a user may do, or pseudonyms stand
        for clients, the will goes out unless it is denied to everybody.
        """
        if connection is not None:
            access = connection.access
            return access is None or self._permits_will(access, state, topic, connection)
        options = self._node.options
        if not options.users_elsewhere and not options.pseudonym_key:
            access = self.permissions.access(state.user, (), state.session)
            return self._permits_will(access, state, topic, None)
        # Whether it is allowed cannot be said; whether it is denied to everybody can.
        if self.permissions.access(None, (), "").forbids(topic):
            self._tell("will", state.session, topic, None)
            return False
        return True

    def _permits_will(
        self, access: TopicAcl, state: SessionState, topic: str, connection: ClientConnection | None
    ) -> bool:
        if access.may_publish(topic):
            return True
        self._tell("will", state.session, topic, connection)
        return False

    def publishes(
        self,
        session: str,
        connection: ClientConnection,
        packet: Publishes,
        accepted_ids: Container[int] = (),
    ) -> Publishes:
        """Return what of a packet may be published.

        The rest is dropped, and told in the log if somebody is told that it arrived; or the
        connection is closed, and what stands behind the first refused message goes as well.
        ``accepted_ids`` are packet identifiers of QoS 2 messages that are accepted already: what
        comes under them is the same once more.
        """
        access = connection.access
        denied = access.denied(packet.topics) if access is not None else set()
        refused = [at for at, raw in enumerate(packet.topics) if raw in denied] if denied else []
        if accepted_ids:
            refused = [at for at in refused if packet.packet_ids[at] not in accepted_ids]
        if not refused:
            return packet
        node, first = self._node, refused[0]
        count = 1 if node.options.close_denied else len(refused)
        self._tell("publish", session, packet.topics[first].decode(), connection, count)
        if node.options.close_denied:
            connection.close_soon("not_permitted")
            connection.ignore_input()
            return select(packet, range(first))
        if packet.qos or packet.retain:
            topics = dict.fromkeys(packet.topics[at].decode() for at in refused)
            some = [topic[:_RECORDED] for topic in islice(topics, _MOST_RECORDED)]
            node.emit(MessageDropped(session, "not_permitted", len(refused), topics=some))
        node.dropped["not_permitted"] += len(refused)
        node.clients.dropped(session, "not_permitted", len(refused), node.clock.time_ms())
        gone = set(refused)
        return select(packet, [at for at in range(len(packet)) if at not in gone])

    def refuses(self, connection: ClientConnection, topic_filter: str) -> int:
        """Return the reason code for which a subscription is refused; 0: it is not.

        The number of subscriptions is not looked at.
        """
        if is_reserved_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        reason = self._node.limits.topics.refuses_filter(topic_filter, 0, new=False)
        if reason == "wildcards" and connection.deep_filter in (None, topic_filter):
            reason = None  # the standard has no such bound: one does no harm
            connection.deep_filter = topic_filter
        if reason is not None:
            now = self._node.clock.monotonic()
            self._node.limits.refused.add(reason, now, client=connection.client_id)
            return ReasonCode.QUOTA_EXCEEDED
        access = connection.access
        if access is not None and not access.may_subscribe(topic_filter):
            self._tell("subscribe", connection.client_id, topic_filter, connection)
            return ReasonCode.NOT_AUTHORIZED
        return 0

    def allows_pattern(
        self, session: str, connection: ClientConnection, topic_filter: str, fresh: set[int]
    ) -> bool:
        """Return whether a session may have a filter with this pattern of wildcards.

        ``fresh`` are patterns that are granted to it and not in the index yet.
        """
        topics, verdict = self._node.limits.topics, connection.identity
        owner = network_of(connection.host)
        if verdict is not None and verdict.user is not None and not verdict.claimed:
            owner = f"user {verdict.user}"
        return self._node.router.patterns.allows(
            session, owner, topic_filter, fresh, topics.patterns, topics.patterns_in_all
        )

    def too_deep(self, topic: bytes) -> bool:
        """Return whether a topic has more levels than there may be."""
        limits = self._node.limits
        reason = limits.topics.refuses_topic(topic)
        if reason is not None:
            limits.refused.add(reason, self._node.clock.monotonic())
        return reason is not None

    def to_nats(self, topic: bytes) -> bool:
        """Say whether NATS may have messages on a topic."""
        return self.bridge is None or self.bridge.read[topic]

    def from_nats(self, topic: bytes) -> bool:
        """Say whether a message that came from NATS may be published."""
        if self.bridge is None or self.bridge.publish[topic]:
            return True
        self._tell("bridge", BRIDGE, topic.decode(), None)
        return False

    def _tell(
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
        topic = escaped(topic, _SHOWN)
        if client is not None:
            self._node.clients.denied(client, what, topic, count, self._node.clock.time_ms())
        now = self._node.clock.monotonic()
        self.refused.add(what, now, count, client=client, topic=topic, **about)
