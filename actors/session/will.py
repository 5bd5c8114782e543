"""The will of a session: armed by CONNECT, then published or cancelled."""

from collections.abc import Callable, Iterator

from actors.session.core import SessionCore
from actors.session.delivery import Delivery
from actors.session.node_context import NodeContext
from actors.session.publisher import Publisher
from actors.session.session_messages import NEXT_TURN, ClientConnection
from eventstore.format.events import WillArmed, WillCancelled, WillFired
from eventstore.log.message_store import Message
from eventstore.reasons import BROKER_ENDS
from protocol.mqtt.packets import Connect, Publishes
from protocol.mqtt.sparkplug import is_death, with_timestamp


class SessionWill:
    """Arms, loads and publishes the will of one session."""

    __slots__ = ("_delivery", "_message", "_node", "_publisher", "_session")

    def __init__(
        self, node: NodeContext, session: SessionCore, delivery: Delivery, publisher: Publisher
    ) -> None:
        self._node = node
        self._session = session
        self._delivery = delivery
        self._publisher = publisher
        self._message: Message | None = None
        """The message to be published; None: there is none, or only the log contains it."""

    def arm(self, connect: Connect) -> None:
        """Record the will of a CONNECT, if it has one."""
        session = self._session
        will = connect.will
        if will is None:
            return
        size = len(will.payload)
        event = WillArmed(session.name, will.topic, will.qos, will.retain, size, 0, will.delay)
        pieces: tuple[bytes, ...] = (will.payload,)
        if will.block:
            event.blocks = [len(will.block)]
            pieces = will.block, will.payload
        session.emit(event, pieces, size + len(will.block))
        self._message = Message(will.topic.encode(), will.payload, will.block)

    def load(self, then: Callable[[], None]) -> bool:
        """Return whether the payload of an armed will is in memory; load it otherwise."""
        will = self._session.state.will
        if will is None or self._message is not None:
            return True
        # It was armed before the session became frozen, or before the broker started: only the log
        # contains it.
        messages = self._delivery.find_or_load([will.ref], then)
        if messages is None:
            return False
        self._message = messages[will.ref]
        return True

    def grace(self, reason: str) -> int:
        """Return the seconds for which the will waits for its client; 0: it does not wait."""
        if self._session.state.will is None:
            return 0
        return self._node.will_grace if reason in BROKER_ENDS else 0

    def is_routed(self) -> bool:
        """Return whether the receivers of an armed will are known; otherwise start matching."""
        will = self._session.state.will
        return will is None or self._publisher.is_routed(will.topic.encode(), will.qos)

    def route(self, then: Callable[[], None]) -> bool:
        """Return whether the receivers of a will are known; otherwise match its topic in parts.

        ``then`` is called when they are known; until then everything except deliveries waits.
        """
        if self.is_routed():
            return True
        self._session.begin_work(self._match_will(then))
        return False

    def _match_will(self, then: Callable[[], None]) -> Iterator[object]:
        yield NEXT_TURN
        while not self.is_routed():
            yield NEXT_TURN
        then()

    def end_waiting(self, *, discard: bool) -> None:
        """Cancel a will that waits, or publish it.

        [MQTT-3.1.3-9] forbids publishing it once the client has reconnected; a reconnect with Clean
        Start ends the session, so that the will is published. A will that waits only because the
        broker ended is cancelled in both cases.
        """
        if discard:
            self.cancel()
        else:
            self.fire(None)

    def cancel(self) -> None:
        """Record that the will is not published."""
        self._message = None
        self._session.emit(WillCancelled(self._session.name))

    def drop(self, topic: str, reason: str) -> None:
        """Record that a will is not published: it is not permitted, or was erased."""
        self._node.drop_unrecorded(self._session.name, reason, [topic.encode()])

    def fire(self, connection: ClientConnection | None) -> None:
        """Publish the will, which was loaded, unless it is no longer permitted or was erased."""
        session = self._session
        will, message = session.state.will, self._message
        self._message = None
        if will is None or message is None:
            return
        session.emit(WillFired(session.name))
        if not self._is_permitted(connection, will.topic):
            self.drop(will.topic, "not_permitted")
            return
        names, is_erased = self._node.names, self._node.is_erased(will.ref, message)
        if names is not None and not is_erased:
            is_erased = names.is_erased(session.name, session.state.user)
        if is_erased:
            self.drop(will.topic, "erased")
            return
        payload = message.payload
        if is_death(will.topic):
            payload = with_timestamp(payload, self._node.clock.time_ms())
        batch = Publishes(will.qos, retain=will.retain)
        batch.topics.append(message.topic)
        batch.payloads.append(payload)
        if message.block:
            batch.blocks = [message.block]
        client_id = session.name if names is None else names.client_of(session.name)
        bridge = session.state.bridge or (session.state.level == 5 and client_id)
        self._publisher.publish_will(batch, bridge=bridge)

    def _is_permitted(self, connection: ClientConnection | None, topic: str) -> bool:
        """Return whether the will, permitted when it was armed, may still be published.

        The log is the only source about a client that connected before the broker restarted. If
        permissions do not only come from the permission file, or if pseudonyms or tokens replace
        names, the will is published unless its topic is denied to all clients.
        """
        node, state = self._node, self._session.state
        permissions = node.permissions.permissions
        if connection is not None:
            permitted = connection.access is None or connection.access.may_publish(topic)
        elif not node.options.users_elsewhere and not node.hides_names:
            permitted = permissions.access(state.user, (), state.session).may_publish(topic)
        else:  # it is only known whether it is denied to all clients
            permitted = not permissions.access(None, (), "").forbids(topic)
        if not permitted:
            node.permissions.log_denied("will", state.session, topic, connection)
        return permitted
