"""Where permissions meet what clients do: publications, subscriptions, wills, the bridge.

Each refusal is counted, and some are told in a line of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.authz.rules import BRIDGE
from actors.limits.rejection_log import Refusals
from actors.session.messages import Close
from actors.session.publisher import select
from eventstore.display import escaped
from eventstore.format import MessageDropped
from protocol.mqtt import is_reserved_filter

if TYPE_CHECKING:
    from collections.abc import Container

    from actors.authz.rules import Access, Permissions
    from actors.broker import Broker
    from actors.connection.connection import Connection
    from projections.state import SessionState
    from protocol.mqtt import Connect, Publishes

_SHOWN = 200
"""Characters of a topic in a line of the log."""


class Permits:
    """Says what clients may do, and refuses the rest."""

    def __init__(self, broker: Broker, permissions: Permissions) -> None:
        self.permissions: Permissions
        self.refused = Refusals("not permitted")
        """By what was asked for: publish, subscribe, will, bridge."""
        self.bridge: Access | None = None
        """What may be exchanged with NATS; None: everything."""
        self._broker = broker
        self.change(permissions)

    def change(self, permissions: Permissions) -> None:
        """Take other permissions; who is connected gets them with :meth:`apply`."""
        self.permissions = permissions
        bridge = permissions.access(BRIDGE, (), BRIDGE)
        self.bridge = None if bridge.open else bridge

    def apply(self) -> None:
        """Have all who are connected get what they may now, and nothing else."""
        for connection in self._broker.connections:
            self.grant(connection)
            session = connection.session
            if session is not None and session.connection is connection:
                self._broker.router.guard(session.name, connection.access)
        if self._broker.bridge is not None:
            self._broker.bridge.permissions_changed()

    def grant(self, connection: Connection) -> None:
        """Tell a connection what its client may do, now that it is known who it is."""
        verdict = connection.identity
        if verdict is None:
            return
        user = None if verdict.claimed else verdict.user
        access = self.permissions.access(user, verdict.groups, connection.given_id, verdict.rules)
        connection.access = None if access.open else access

    def takes_will(self, connection: Connection, connect: Connect) -> bool:
        """Say whether a CONNECT may go on; a will that it may not have is taken off it."""
        will, access = connect.will, connection.access
        if will is None or access is None or access.may_publish(will.topic):
            return True
        self._tell("will", connect.client_id, will.topic, connection)
        connect.will = None
        return not self._broker.options.close_denied

    def may_fire(self, state: SessionState, connection: Connection | None, topic: str) -> bool:
        """Say whether a session's will may be published now; it could when it was armed.

        Of a client that was connected before the broker started again, no more is known than the
        log has: where others than the permission file say what a user may do, or pseudonyms stand
        for clients, the will goes out unless it is denied to everybody.
        """
        if connection is not None:
            access = connection.access
            return access is None or self._permits_will(access, state, topic, connection)
        options = self._broker.options
        if not options.users_elsewhere and not options.pseudonym_key:
            access = self.permissions.access(state.user, (), state.session)
            return self._permits_will(access, state, topic, None)
        # Whether it is allowed cannot be said; whether it is denied to everybody can.
        if self.permissions.access(None, (), "").forbids(topic):
            self._tell("will", state.session, topic, None)
            return False
        return True

    def _permits_will(
        self, access: Access, state: SessionState, topic: str, connection: Connection | None
    ) -> bool:
        if access.may_publish(topic):
            return True
        self._tell("will", state.session, topic, connection)
        return False

    def publishes(
        self,
        session: str,
        connection: Connection,
        packet: Publishes,
        taken: Container[int] = (),
    ) -> Publishes:
        """Return what of a packet may be published.

        The rest is dropped, and told in the log if somebody is told that it arrived; or the
        connection is closed, and what stands behind the first refused message goes as well.
        ``taken`` are packet identifiers of QoS 2 messages that are accepted already: what comes
        under them is the same once more.
        """
        access = connection.access
        denied = access.denied(packet.topics) if access is not None else set()
        refused = [at for at, raw in enumerate(packet.topics) if raw in denied] if denied else []
        if taken:
            refused = [at for at in refused if packet.packet_ids[at] not in taken]
        if not refused:
            return packet
        broker, first = self._broker, refused[0]
        count = 1 if broker.options.close_denied else len(refused)
        self._tell("publish", session, packet.topics[first].decode(), connection, count)
        if broker.options.close_denied:
            broker.kernel.tell(connection, Close("not_permitted"))
            connection.stop_listening()
            return select(packet, range(first))
        if packet.qos or packet.retain:
            broker.emit(MessageDropped(session, "not_permitted", len(refused)))
        broker.dropped["not_permitted"] += len(refused)
        gone = set(refused)
        return select(packet, [at for at in range(len(packet)) if at not in gone])

    def refuses(self, connection: Connection, topic_filter: str) -> bool:
        """Say whether a subscription is refused, but for the number of them."""
        if is_reserved_filter(topic_filter):
            return True
        reason = self._broker.guard.topics.refuses_filter(topic_filter, 0, new=False)
        if reason == "wildcards" and connection.deep_filter in (None, topic_filter):
            reason = None  # the standard has no such bound: one does no harm
            connection.deep_filter = topic_filter
        if reason is not None:
            now = self._broker.clock.monotonic()
            self._broker.guard.refused.add(reason, now, client=connection.client_id)
            return True
        access = connection.access
        if access is not None and not access.may_subscribe(topic_filter):
            self._tell("subscribe", connection.client_id, topic_filter, connection)
            return True
        return False

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
        connection: Connection | None,
        count: int = 1,
    ) -> None:
        about: dict[str, str | None] = {}
        if connection is not None:
            about["address"] = connection.address
            about["user"] = connection.identity.user if connection.identity is not None else None
        topic = escaped(topic, _SHOWN)
        now = self._broker.clock.monotonic()
        self.refused.add(what, now, count, client=client, topic=topic, **about)
