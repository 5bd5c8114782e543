"""One actor for each client identifier: it decides, and its state is the fold of its events.

Every decision becomes events; an event is appended to the journal and applied to the state at
once. What the client is told about it (acknowledgements, deliveries) is handed to the gate and
leaves when the events are on disk.

A session whose client is away has no connection and no subscription actors: what matches its
subscriptions comes straight to it and is queued. When nothing came for a while it is passivated.

Work that a client can make long (many filters, many messages, many receivers) is done in parts,
each in a turn of its own. Until it is done everything else that the session is told waits, but for
deliveries.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import structlog

from actors.kernel.kernel import Failed, LoopActor
from actors.limits.subscription_rate import Changes
from actors.node.read_pause import ReadPause
from actors.session import decisions
from actors.session.delivery import Delivery
from actors.session.messages import (
    AckCheck,
    Attach,
    Detached,
    Expire,
    GoOnSending,
    Kick,
    Loaded,
    Outgoing,
    Packets,
    Regrant,
    Remove,
    Retire,
    Retry,
    Writable,
)
from actors.session.publisher import Publisher, select
from actors.session.subscription import Subscription
from eventstore.format import (
    Event,
    MessageDropped,
    Position,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    WillArmed,
    WillCancelled,
    WillFired,
    format_position,
    from_runs,
    sequence_of,
)
from eventstore.log import Message
from projections.state import SessionState
from protocol.mqtt import (
    PINGRESP,
    Acks,
    Connect,
    ConnectCode,
    PacketType,
    Pingreq,
    Publishes,
    Subscribe,
    Unsubscribe,
    acks,
    connack,
    is_death,
    suback,
    unsuback,
    with_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.routing.router import Subscriber
    from actors.session.context import NodeContext
    from actors.session.ports import ClientConnection
    from projections.state import RetainedMessage
    from protocol.mqtt import Packet

_log = structlog.get_logger("foldmq")

_FILTERS_AT_ONCE: Final = 32
"""Topic filters of a SUBSCRIBE or UNSUBSCRIBE that are handled in one turn."""
_STARTED_AT_ONCE: Final = 512
"""Subscriptions of a session that comes back that are started in one turn."""
_FROZEN_AT_MOST: Final = 2048
"""Subscriptions of a session that is passivated: one with more would take too long to come back."""
_RELEASED_AT_ONCE: Final = 256
"""Packet identifiers of a run of PUBRELs that are handled in one turn."""
_RETAINED_AT_ONCE: Final = 1024
"""Retained messages that go to a new subscription without a look at the clock."""

_FILTERS_TEXT: Final = 64 * 1024
"""Characters of such filters, about."""
_ENDS_REST: Final = frozenset({Attach, Detached, Kick, Remove})
"""What a session is told that does not wait until its client may change subscriptions again."""
_BURST: Final = 10_000
"""Changes of subscriptions that may come at once where their number has no bound."""

_PART: Final = object()
"""Yielded by longer work: the next part is a turn of its own, others come in between. A number
is yielded to wait for so many seconds first."""
_BREATH: Final = object()
"""Yielded by longer work: the next part belongs to the same turn, the event loop may come."""
_GO_ON: Final = object()
"""Told to itself by a session that is to do the next part of longer work."""


class Session(LoopActor):
    """A client's session."""

    __slots__ = (
        "_attaching",
        "_changes",
        "_delivery",
        "_node",
        "_publisher",
        "_recorded",
        "_resting",
        "_unhandled",
        "_will",
        "_work",
        "connection",
        "last_active",
        "name",
        "state",
        "to_deliver",
    )

    def __init__(self, node: NodeContext, name: str, state: SessionState | None) -> None:
        super().__init__()
        self._node = node
        self.name = name
        self.state = state if state is not None else SessionState(name)
        self.connection: ClientConnection | None = None
        self.last_active = node.clock.monotonic()
        self._changes = Changes()
        self._delivery = Delivery(node, self)
        self._publisher = Publisher(node, name)
        self._attaching: ClientConnection | None = None
        """The connection that it will have when its subscriptions are started."""
        self._resting = False
        """The client changed too many subscriptions, and waits."""
        self._unhandled: list[Any] = []
        self._work: Iterator[object] | None = None
        """Longer work of which a part is left."""
        self._will: Message | None = None
        self._recorded: list[tuple[Event, Position, int]] | None = None
        self.to_deliver: list[Outgoing] = []
        """What is left of a failed subscription's work."""

    def __str__(self) -> str:
        """Return the client identifier."""
        return self.name

    @property
    def client(self) -> str:
        """The client identifier."""
        return self.name

    @property
    def loading(self) -> bool:
        """True while messages are being read from the log for it."""
        return self._delivery.loading

    # Mailbox.

    def on_receive(self, message: Any) -> None:
        """Handle one message; while messages are being loaded everything else waits.

        But for deliveries, those of a failed subscription too: their publisher is told as soon as
        the publication is on disk, so they must be recorded with it, as queued.
        """
        if self._recorded is not None:
            if type(message) is Outgoing:
                self.record_unseen(message, 0)
            else:
                self._unhandled.append(message)
            return
        if message is _GO_ON:
            self._go_on()
        elif self.occupied and type(message) not in (Loaded, Outgoing, Failed):
            self._unhandled.append(message)
            if self._resting and type(message) in _ENDS_REST:
                self._go_on()
        else:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        kind = type(message)
        if kind is Packets:
            self._on_packets(message)
        elif kind is Outgoing:
            self._delivery.deliver(message)
        else:
            self._HANDLERS[kind](self, message)

    # What is decided for many sessions in one pass, see ``actors.connection.turn``.

    @property
    def free(self) -> bool:
        """True while nothing waits for it, it has nothing left to do, and nobody looks on."""
        return (
            self._waiting is None
            and self._work is None
            and self._recorded is None
            and self.tap is None
            and not self.stopped
            and not self._unhandled
            and not self._delivery.loading
        )

    def may_send(self, connection: ClientConnection) -> bool:
        """Return whether a message may be sent to the client before anything else."""
        return self._delivery.may_send(connection)

    def expect_acks(self) -> None:
        """Look after a while whether what was sent was acknowledged."""
        self._delivery.expect_acks()

    # Longer work.

    @property
    def occupied(self) -> bool:
        """True while something longer goes on for which all but deliveries waits."""
        return self._work is not None or self._delivery.loading

    def _begin(self, work: Iterator[object]) -> None:
        """Do longer work: its first part now."""
        for rest in work:
            self._work = work
            if self.connection is not None:
                self.connection.pause(ReadPause.WORK)
            if rest is _PART:
                self.kernel.later(self, _GO_ON)
            elif rest is _BREATH:
                self.kernel.tell(self, _GO_ON)
            else:
                self._node.timers.remind(cast("float", rest), self._go_on_later)
            return

    def _go_on_later(self) -> None:
        self.kernel.later(self, _GO_ON)

    def _go_on(self) -> None:
        """Do the next part of longer work; after the last one, what waited for it."""
        work, self._work = self._work, None
        if work is not None:
            self._begin(work)
        self._catch_up()

    def _catch_up(self) -> None:
        """Handle what waited, each in a turn of its own."""
        if self.stopped or self.occupied:
            return
        if self._unhandled:
            self._handle(self._unhandled.pop(0))
            if self._unhandled and not self.stopped and not self.occupied:
                self._begin(iter((_PART,)))
        if self.stopped or self.occupied or self._unhandled:
            return
        if self.connection is not None:
            self.connection.resume(ReadPause.WORK)
            if self.state.queued:
                self._delivery.drain()

    def on_part(self, seconds: float) -> None:
        """Hear how long a part of longer work took; the next one is shorter or longer."""
        if self.connection is not None:
            self.connection.on_part(seconds)

    def at_once(self, most: int) -> int:
        """Return how much of something is done in one turn, at the pace of the client."""
        connection = self.connection
        return most if connection is None else max(1, int(most * connection.pace))

    def on_undelivered(self, messages: list[Any]) -> None:
        """Give what came after the session was passivated to the one that takes its place."""
        self._node.directory.redirect(self.name, messages)

    def emit(self, event: Event, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        """Append an event and apply it; return its first position."""
        return self._node.emit(event, payloads, size)

    def drop_denied(self, topic_filter: str, refs: Sequence[Position]) -> None:
        """Record that the client does not get messages that it may not have."""
        self._node.drop_denied(self.name, refs, topic_filter)

    # The life of a session.

    def _on_attach(self, message: Attach) -> None:
        self._attaching = message.connection
        self._begin(self._attach(message))

    def _attach(self, message: Attach) -> Iterator[object]:
        """Start the subscriptions of a session that comes back, then let its client in."""
        known = self._node.state.sessions.get(self.name)
        if known is not None and not known.clean and not message.connect.clean:
            subscribers = self._node.router.subscribers(self.name)
            for at in range(0, len(subscribers), _STARTED_AT_ONCE):
                if at:
                    yield _PART
                for subscriber in subscribers[at : at + _STARTED_AT_ONCE]:
                    self._start_subscription(subscriber)
        self._let_in(message)
        self._attaching = None

    def _let_in(self, message: Attach) -> None:
        connection, connect = message.connection, message.connect
        if connection.ended:
            if self.connection is None:
                self._stop_subscriptions(self._node.router.subscribers(self.name))
                self._node.directory.went_offline(self)
            return
        self.last_active = self._node.clock.monotonic()
        known = self._node.state.sessions.get(self.name)
        resumed = known is not None and not known.clean and not connect.clean
        if self.connection is not None:
            self._take_over(self.connection, resumed=resumed)
            known = self._node.state.sessions.get(self.name)
            resumed = resumed and known is not None
        generation = self.state.generation + 1
        if known is not None and not resumed:
            self._forget_subscriptions()
        at = self.emit(
            SessionOpened(
                self.name,
                resumed,
                connect.clean,
                connect.version,
                connect.keep_alive,
                generation,
                connection.address,
                connection.identity.user if connection.identity is not None else connect.username,
            )
        )
        _log.debug(
            "connected",
            client=self.name,
            address=connection.address,
            resumed=resumed,
            position=format_position(at),
        )
        self.state = self._node.state.sessions[self.name]
        if connect.will is not None:
            self._arm_will(connect)
        self.connection = self._publisher.origin = connection
        self._node.directory.came_online(self)
        self._answer(
            connection,
            connack(ConnectCode.ACCEPTED, session_present=resumed, version=connect.version),
        )
        self._node.journal.order_behind(connection)
        if resumed:
            self._node.router.guard(self.name, connection.access)
            for subscriber in self._node.router.subscribers(self.name):
                self._start_subscription(subscriber)
            self._delivery.resume()
        connection.attached(self, connect.keep_alive)
        meters = self._node.counters
        meters.most_clients = max(meters.most_clients, self._node.directory.attached)

    def _arm_will(self, connect: Connect) -> None:
        will = connect.will
        if will is None:
            return
        size = len(will.payload)
        event = WillArmed(self.name, will.topic, will.qos, will.retain, size, 0)
        self.emit(event, (will.payload,), size)
        self._will = Message(will.topic.encode(), will.payload)

    def _take_over(self, old: ClientConnection, *, resumed: bool) -> None:
        """Close the connection that the client had until now [MQTT-3.1.4-2]."""
        self._let_go(old, "taken_over")
        at = self.emit(SessionTakenOver(self.name, self.state.generation))
        _log.info(
            "session taken over",
            client=self.name,
            address=old.address,
            position=format_position(at),
        )
        self._close("taken_over", orderly=False, resumed=resumed)

    def _let_go(self, connection: ClientConnection, reason: str) -> None:
        """Close a connection that is this session's no longer."""
        connection.session = None
        connection.close(reason)

    def _on_kick(self, message: Kick) -> None:
        if self.connection is None:
            message.order.refuse("is not connected")
            return
        message.order.carry_out(self._node)
        self._kick(self.connection)

    def _kick(self, connection: ClientConnection) -> None:
        self._let_go(connection, "kicked")
        self._disconnected("kicked", orderly=False)

    def _on_remove(self, message: Remove) -> None:
        state, before = self.state, message.offline_before_ms
        if self._node.state.sessions.get(self.name) is not state:
            message.order.refuse("no such session")
            return
        if before and (state.connected or state.closed_ms > before):
            message.order.refuse("came back meanwhile")
            return
        message.order.carry_out(self._node)
        if self.connection is not None:
            self._kick(self.connection)
        if self._node.state.sessions.get(self.name) is state and not self.stopped:
            self._end("removed")

    def _on_detached(self, message: Detached) -> None:
        state, connection = self.state, message.connection
        if connection is not None:
            connection.close_behind()
        # After a rebuild or a restart there is no connection, only a state that says so.
        if not state.connected or self.connection not in (None, connection):
            return
        if state.will is not None and self._will is None:
            # Armed before the broker was started again: its payload is in the log only.
            found = self._delivery.find([state.will.ref])
            if found is None:
                self._delivery.load([state.will.ref], lambda: self._on_detached(message))
                return
            self._will = found[state.will.ref]
        self._disconnected(message.reason, orderly=message.orderly)

    def _disconnected(self, reason: str, *, orderly: bool) -> None:
        """Go on without a connection, or end with it."""
        self._close(reason, orderly=orderly)
        if self._node.state.sessions.get(self.name) is None:
            self._node.directory.retire(self)
        else:
            self._node.directory.went_offline(self)

    def _close(self, reason: str, *, orderly: bool, resumed: bool = False) -> None:
        """Let the connection's part of the session end: its will, and all of a clean session.

        ``resumed``: its subscriptions go on with the connection that took over.
        """
        state = self.state
        connection, self.connection = self.connection, None
        self._publisher.origin = None
        if connection is not None and connection.session is self:
            connection.session = None
        self._delivery.forget()
        if state.will is not None:
            if orderly:
                self._will = None
                self.emit(WillCancelled(self.name))
            else:
                self._fire_will(connection)
        if not resumed:
            self._node.router.guard(self.name, None)
            self._stop_subscriptions(self._node.router.subscribers(self.name))
        at = self.emit(SessionClosed(self.name, reason, state.generation))
        _log.debug(
            "disconnected",
            client=self.name,
            address=connection.address if connection is not None else None,
            reason=reason,
            position=format_position(at),
        )
        if state.clean:
            self._node.router.remove_session(self.name)

    def _fire_will(self, connection: ClientConnection | None) -> None:
        will, message = self.state.will, self._will
        self._will = None
        if will is None or message is None:
            return
        self.emit(WillFired(self.name))
        if not self._node.permissions.authorize_will_on_publish(self.state, connection, will.topic):
            at = self.emit(MessageDropped(self.name, "not_permitted", 1))
            self._node.count_dropped(
                "not_permitted", 1, client=self.name, position=format_position(at)
            )
            return
        payload = message.payload
        if is_death(will.topic):
            payload = with_timestamp(payload, self._node.clock.time_ms())
        batch = Publishes(will.qos, retain=will.retain)
        batch.topics.append(message.topic)
        batch.payloads.append(payload)
        self._publisher.publish(self, batch, will=True)

    def _on_expire(self, _message: Expire) -> None:
        if self._node.state.sessions.get(self.name) is not self.state or self.state.connected:
            return
        if self._node.expires_in(self.state) > 0:
            return
        self._node.counters.expired += 1
        self._end("expired")

    def _end(self, reason: str) -> None:
        """Remove the session, which has no connection, with all it holds."""
        self._forget_subscriptions()
        at = self.emit(SessionExpired(self.name, reason))
        _log.debug("session removed", client=self.name, reason=reason, position=format_position(at))
        self._node.directory.retire(self)

    def _on_retire(self, _message: Retire) -> None:
        many = len(self.state.subscriptions) > _FROZEN_AT_MOST
        if self.connection is None and not self._delivery.loading and not many:
            self._node.directory.retire(self)

    def _forget_subscriptions(self) -> None:
        self._stop_subscriptions(self._node.router.remove_session(self.name))

    def _start_subscription(self, subscriber: Subscriber) -> LoopActor:
        actor = subscriber.actor
        if actor is None or actor.stopped:  # it may have failed in this turn
            actor = subscriber.actor = Subscription(self, subscriber)
            self.kernel.spawn(actor, self)
            self._node.router.started(subscriber)
        return actor

    def _stop_subscriptions(self, subscribers: Sequence[Subscriber]) -> None:
        """Stop what works for subscriptions."""
        actors = []
        for subscriber in subscribers:
            actor, subscriber.actor = subscriber.actor, None
            self._node.router.stopped(subscriber)
            # One that failed may not have been replaced yet: the session was reading messages.
            if actor is not None and not actor.stopped:
                actors.append(actor)
        self._node.directory.stop_all(actors)

    def _on_failed(self, message: Failed) -> None:
        """Replace a subscription that failed; deliver what it had been told in its place."""
        failed = message.actor
        if not isinstance(failed, Subscription):
            return
        subscriber = failed.subscriber
        if subscriber.actor is failed:
            subscriber.actor = None
            if self.connection is not None:
                self._start_subscription(subscriber)
        self.to_deliver = failed.outgoings(message)
        while self.to_deliver:
            self._handle(self.to_deliver[0])
            self.to_deliver.pop(0)

    # What the client sends.

    def _on_packets(self, message: Packets) -> None:
        connection = message.connection
        if connection is not self.connection:
            if not connection.ended:
                # It must not go on talking to a session that does not listen.
                connection.close_soon("session_lost")
            return
        for number, packet in enumerate(message.packets, 1):
            if connection.deaf:
                return
            rest: Packet | None = None
            if type(packet) is Publishes:
                rest = self._on_publishes(connection, packet)
            elif type(packet) is Acks:
                rest = self._on_acks(connection, packet)
            elif type(packet) is Subscribe:
                self._begin(self._subscribe(connection, packet))
            elif type(packet) is Unsubscribe:
                self._begin(self._unsubscribe(connection, packet))
            elif type(packet) is Pingreq:
                self._answer(connection, PINGRESP)
            if rest is not None or self.occupied:
                # What is left of this message stands before those that came after it.
                left = message.packets[number:]
                if rest is not None:
                    left = [rest, *left]
                if left:
                    self._unhandled.insert(0, Packets(connection, left))
                if not self.occupied:
                    self._begin(iter((_PART,)))
                return

    def _on_publishes(self, connection: ClientConnection, packet: Publishes) -> Publishes | None:
        """Publish as many messages as may be in one turn; return the others."""
        rest, at_once = None, len(packet)
        if packet.qos < 2:  # others are routed when they are released
            at_once = self._publisher.at_once(packet.topics, packet.qos)
        if not at_once:
            return packet  # sessions that were passive are made ready for it first
        if at_once < len(packet):
            rest = select(packet, range(at_once, len(packet)))
            packet = select(packet, range(at_once))
        permitted = packet
        if connection.access is not None:
            taken = self.state.inbound if packet.qos == 2 else ()
            permitted = self._node.permissions.publishes(self.name, connection, packet, taken)
        qos, ids = packet.qos, packet.packet_ids
        if qos == 2 and self._node.options.reject_qos2_publish:
            _log.info("QoS 2 publish rejected", client=self.name, address=connection.address)
            connection.close_soon("qos2_rejected")
            return None
        if qos or packet.retain:
            permitted = self._without_too_large(connection, permitted)
        if connection.deaf:
            # Only what stood before the one because of which it is closed [MQTT-3.3.5-2].
            ids = permitted.packet_ids
        if len(permitted):
            if qos == 2:
                self._publisher.store(self, permitted)
            else:
                self._publisher.publish(self, permitted)
        if qos and ids:
            kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
            self._acknowledge(connection, kind, ids)
        return rest

    def _without_too_large(self, connection: ClientConnection, packet: Publishes) -> Publishes:
        """Close the connection if the log has no room for a message; return those before it."""
        fitting = self._publisher.fitting(packet)
        if fitting == len(packet):
            return packet
        self._node.limits.refused.add(
            "message_too_large",
            self._node.clock.monotonic(),
            client=self.name,
            address=connection.address,
            payload=len(packet.payloads[fitting]),
        )
        connection.close_soon("message_too_large")
        connection.stop_listening()
        return select(packet, range(fitting))

    def _on_acks(self, connection: ClientConnection, packet: Acks) -> Acks | None:
        """Handle acknowledgements; return those that are too many for one turn."""
        kind, ids = packet.kind, packet.packet_ids
        event: Event | None
        if kind is PacketType.PUBACK:
            event = decisions.acked(self.state, ids)
        elif kind is PacketType.PUBREC:
            event = decisions.received(self.state, ids)
            self._acknowledge(connection, PacketType.PUBREL, ids)
        elif kind is PacketType.PUBCOMP:
            event = decisions.completed(self.state, ids)
        else:
            most = self.at_once(_RELEASED_AT_ONCE)
            rest = self._on_release(connection, ids[:most])
            rest += ids[most:]
            return Acks(kind, rest) if rest else None
        if event is not None:
            self.emit(event)
            if self.state.queued:
                self._delivery.drain()
        return None

    def _on_release(self, connection: ClientConnection, packet_ids: list[int]) -> list[int]:
        """Let QoS 2 messages take effect; answer with PUBCOMP in any case.

        Returns the packet identifiers whose messages are too much work for this turn.
        """
        rest: list[int] = []
        events = decisions.released(self.state, packet_ids)
        if events:
            refs = [ref for event in events for ref in from_runs(event.refs)]
            found = self._delivery.find(refs)
            if found is None:
                self._delivery.load(refs, lambda: self._release_loaded(connection, packet_ids))
                return []
            at_once = self._publisher.at_once([found[ref].topic for ref in refs], 2)
            if not at_once:
                return packet_ids
            if at_once < len(refs):
                pids = [pid for event in events for pid in from_runs(event.pids)]
                stop = packet_ids.index(pids[at_once - 1]) + 1
                packet_ids, rest = packet_ids[:stop], packet_ids[stop:]
                events = decisions.released(self.state, packet_ids)
                refs = refs[:at_once]
            known = partial(self._node.state.retained.known, self.name)
            for event in events:
                at = self.emit(event)
                released = from_runs(event.refs)
                took_effect = at, at + len(released) - 1
                for retain, some in itertools.groupby(released, known):
                    chosen = [*some]
                    messages = [found[ref] for ref in chosen]
                    self._publisher.release(chosen, messages, took_effect, retain=retain)
            self._delivery.let_go(refs)
        if connection is self.connection:
            self._acknowledge(connection, PacketType.PUBCOMP, packet_ids)
        return rest

    def _release_loaded(self, connection: ClientConnection, packet_ids: list[int]) -> None:
        rest = self._on_release(connection, packet_ids)
        if rest:
            self._unhandled.insert(0, Packets(connection, [Acks(PacketType.PUBREL, rest)]))

    def _subscribe(self, connection: ClientConnection, packet: Subscribe) -> Iterator[object]:
        """Grant filters in parts, answer, and replay the retained messages that each asks for."""
        filters, codes, changes = packet.filters, [], 0
        replayed: set[str] = set()
        at = 0
        while at < len(filters):
            some = filters[at : at + self.at_once(_FILTERS_AT_ONCE)]
            stop = at + self._granted_at_once([topic_filter for topic_filter, _ in some])
            if at or self._matches_much(filters[0][0]):
                yield _PART
            if connection.ended:
                return
            grant = self._grant(connection, filters[at:stop])
            codes += grant.codes
            # All are in the index before the event loop may come: what is published is not missed.
            begun = [self._subscribe_to(connection, *one) for one in dict(grant.granted).items()]
            if stop == len(filters):
                self._answer(connection, suback(packet.packet_id, codes))
                self._node.journal.order_behind(connection)
            for subscriber in begun:
                # One that stands there again is replayed once.
                if subscriber.filter not in replayed:
                    replayed.add(subscriber.filter)
                    yield from self._replay(subscriber)
            at = stop
            changes += len(begun)
        yield from self._rest(changes)

    def _granted_at_once(self, filters: Sequence[str]) -> int:
        """Return how many filters are granted in one turn: one that matches much is alone."""
        within = filters[: _handled_at_once(filters)]
        for count, topic_filter in enumerate(within):
            if self._matches_much(topic_filter):
                return count or 1
        return len(within)

    def _matches_much(self, topic_filter: str) -> bool:
        """Return whether many retained messages may match a filter."""
        many = len(self._node.state.retained) > _RETAINED_AT_ONCE
        return many and ("+" in topic_filter or "#" in topic_filter)

    def _grant(
        self, connection: ClientConnection, filters: Sequence[tuple[str, int]]
    ) -> decisions.Grant:
        """Decide on some filters of a SUBSCRIBE and record what is granted."""
        node, fresh = self._node, set[int]()
        refused = Counter[str]()

        def refuses(topic_filter: str) -> bool:
            if node.permissions.refuses(connection, topic_filter):
                return True
            if node.permissions.allows_pattern(self.name, connection, topic_filter, fresh):
                return False
            refused["wildcard_patterns"] += 1
            return True

        grant = decisions.subscribe(
            self.state,
            filters,
            max_qos=1 if node.options.downgrade_qos2_subscribe else 2,
            refuses=refuses,
            most=node.options.bounds.max_subscriptions or sys.maxsize,
        )
        refused["subscriptions"] = grant.over
        for reason, count in refused.items():
            if count:
                now = node.clock.monotonic()
                node.limits.refused.add(reason, now, client=self.name, filters=count)
        for event in grant.events:
            self.emit(event)
        return grant

    def _subscribe_to(
        self, connection: ClientConnection, topic_filter: str, qos: int
    ) -> Subscriber:
        subscriber = self._node.router.subscribe(self.name, topic_filter, qos, connection.access)
        known = subscriber.actor is not None
        actor = self._start_subscription(subscriber)
        if known:
            self.kernel.tell(actor, Regrant(qos))
        return subscriber

    def _replay(self, subscriber: Subscriber) -> Iterator[object]:
        """Have a subscription given the retained messages that match it.

        In the order of their age, where they are few. All within the turn of the grant: nothing
        is published in between.
        """
        node, actor = self._node, self._start_subscription(subscriber)
        guard, denied = subscriber.guard, []
        long = self._matches_much(subscriber.filter)
        found: list[RetainedMessage] = []
        for number, message in enumerate(node.state.retained.matching(subscriber.filter), 1):
            if guard is None or guard.may_read(message.topic):
                found.append(message)
            elif message.qos:
                denied.append(message.ref)
            if long and not number % _RETAINED_AT_ONCE:
                yield _BREATH
        if subscriber.qos and denied:
            node.drop_denied(self.name, sorted(denied), subscriber.filter)
            if len(found) == _RETAINED_AT_ONCE:
                self._tell_retained(actor, found)
                found = []
        self._tell_retained(actor, found)
        if subscriber.filter.startswith("$SYS/"):
            present = node.system_topics.retained(subscriber.filter, guard)
            if present is not None:
                self.kernel.tell(actor, present)

    def _tell_retained(self, actor: LoopActor, messages: list[RetainedMessage]) -> None:
        if messages:
            self.kernel.tell(actor, sorted(messages, key=attrgetter("ref")))

    def _unsubscribe(self, connection: ClientConnection, packet: Unsubscribe) -> Iterator[object]:
        filters, changes = list(dict.fromkeys(packet.filters)), 0
        at = 0
        while at < len(filters):
            if at:
                yield _PART
            some = filters[at : at + self.at_once(_FILTERS_AT_ONCE)]
            some = some[: _handled_at_once(some)]
            at += len(some)
            gone = []
            for topic_filter in some:
                subscriber = self._node.router.unsubscribe(self.name, topic_filter)
                if subscriber is not None:
                    self._stop_subscriptions((subscriber,))
                    gone.append(topic_filter)
            for event in decisions.unsubscribe(self.state, gone):
                self.emit(event)
            changes += len(gone)
        self._answer(connection, unsuback(packet.packet_id))
        yield from self._rest(changes)

    def _rest(self, changes: int) -> Iterator[object]:
        """Take nothing more from the client for a while if it changed too many subscriptions."""
        bounds = self._node.options.bounds
        now = self._node.clock.monotonic()
        wait = self._changes.add(
            changes, now, bounds.subscribe_rate, bounds.max_subscriptions or _BURST
        )
        if wait:
            self._node.limits.refused.add("subscribe_rate", now, client=self.name)
            self._resting = True
            yield wait
            self._resting = False

    def _answer(self, connection: ClientConnection, data: bytes, packets: int = 1) -> None:
        """Let the client have an answer when what was decided is on disk."""
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.packets_out += packets

    def _acknowledge(
        self, connection: ClientConnection, kind: PacketType, packet_ids: Sequence[int]
    ) -> None:
        self._answer(connection, acks(kind, packet_ids), len(packet_ids))

    # What the client gets.

    def _on_writable(self, message: Writable) -> None:
        if message.connection is self.connection:
            self._delivery.drain()

    def _on_loaded(self, message: Loaded) -> None:
        self._delivery.loaded(message.found)
        self._catch_up()

    def _on_go_on_sending(self, _message: GoOnSending) -> None:
        self._delivery.go_on()

    def _on_ack_check(self, _message: AckCheck) -> None:
        self._delivery.check_acks()

    # After a failure.

    def _on_retry(self, message: Retry) -> None:
        self._on_detached(message.message)

    def begin_rebuild(self) -> None:
        """Take a failed session's place: record deliveries, put off all else.

        The state that it left is good enough to say behind which messages they must wait.
        """
        self._recorded = []
        state = self._node.state.sessions.get(self.name)
        if state is not None:
            self.state = state

    def record_unseen(self, outgoing: Outgoing, start: int) -> None:
        """Record as queued what a session without a state is to deliver, from ``start`` on."""
        subscriber, batch, qos = outgoing
        refs = batch.refs[start:]
        if not qos or not refs or subscriber.ended or self._recorded is None:
            return
        payloads = batch.payloads[start:]
        topic_filter = decisions.goes_behind(self.state, subscriber.filter) or subscriber.filter
        for event in decisions.queued(
            self.name, topic_filter, qos, refs, payloads, retain=batch.retain
        ):
            at = self.emit(event)
            self._recorded.append((event, at, self._node.journal.time_ms))

    def end_rebuild(self, state: SessionState | None, last: int, first: list[Any]) -> None:
        """Go on with a state that holds the records up to ``last``: do ``first``, then the rest."""
        recorded, self._recorded = self._recorded, None
        self.state = state if state is not None else SessionState(self.name)
        if state is not None:
            for event, at, time_ms in recorded or ():
                if sequence_of(at) > last:
                    self._node.state.apply(event, at, time_ms)
        put_off, self._unhandled = self._unhandled, []
        for message in (*first, *put_off):
            self.kernel.tell(self, message)

    def on_failure(self, *_exc_info: object) -> None:
        """Have a successor put in place at once: nobody must tell the dead."""
        self._delivery.let_publishers_go()
        if self._attaching is not None:
            self._attaching.abort("session_failed")
        self._node.directory.on_session_failure(self)

    def dispose(self) -> None:
        """Let go of what refers back to this actor, which ended: no work for the collector."""
        self._delivery.forget()
        self._work = None
        del self._delivery

    def unfinished(self) -> list[Any]:
        """Return what the session had been told and put off: for its successor."""
        unhandled, self._unhandled = self._unhandled, []
        return unhandled

    def recorded_of(self, outgoing: Outgoing) -> int:
        """Return how many messages of a batch were recorded before the session failed."""
        return self._delivery.recorded_of(outgoing)

    _HANDLERS: ClassVar[dict[type, Callable[[Session, Any], None]]] = {
        Attach: _on_attach,
        Detached: _on_detached,
        Writable: _on_writable,
        Loaded: _on_loaded,
        AckCheck: _on_ack_check,
        GoOnSending: _on_go_on_sending,
        Expire: _on_expire,
        Kick: _on_kick,
        Remove: _on_remove,
        Retire: _on_retire,
        Retry: _on_retry,
        Failed: _on_failed,
    }


def _handled_at_once(filters: Sequence[str]) -> int:
    """Return how many of some topic filters are handled in one turn, by their length."""
    size = 0
    for count, topic_filter in enumerate(filters):
        size += len(topic_filter)
        if size > _FILTERS_TEXT:
            return count or 1
    return len(filters)
