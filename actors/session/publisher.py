"""Publications: admitted, recorded, routed to the subscribers and acknowledged.

One PUBLISH batch becomes one event and one batch for each distinct set of receivers. A receiver
gets its messages in the order of publication, whatever their topics.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from actors.routing.option_semantics import is_no_local
from actors.routing.routing_plan import plan_routing, routes_at_once, same_route_at_once
from actors.routing.subscriber import is_shared
from actors.session.decisions import publish_admission
from actors.session.delivery_encoder import remaining_properties
from actors.session.session_messages import NOT_LOGGED, Batch, DeniedMessages, Outgoing, Publication
from actors.session.subscription_actor import enqueue
from eventstore.format.events import MessagePublished, Released
from eventstore.format.positions import Position, to_runs
from eventstore.format.record_size import ESCAPED, NAMES
from eventstore.format.stored_properties import block_columns, expiries
from eventstore.log.journal import ENTRY_BYTES
from eventstore.log.message_store import StoredMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from actors.routing.routes import Route
    from actors.routing.routing_plan import RoutingPlan, SomeMessages
    from actors.routing.subscriber import Subscriber
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import ClientConnection
    from eventstore.format.positions import Run
    from eventstore.log.message_store import Message
    from protocol.mqtt.packets import Publishes


_Own: TypeAlias = "dict[Subscriber, list[int]]"
"""Subscriptions of the publishing session, and indices of the messages that each gets."""

_ENOUGH, _ENOUGH_SHARED = 40_000.0, 6_000.0
"""Microseconds of work that one client may cause in one turn, unless one message causes more; the
second value applies while light clients are active."""
_DELIVERIES, _DELIVERIES_SHARED = 20_000, 500
"""Deliveries of all clients in a turn after which bursts wait for the next one; the second value
applies while light clients are active."""


class Publisher:
    """Publishes for one session."""

    __slots__ = ("_looked_up", "_node", "connection", "name")

    def __init__(self, node: NodeContext, name: str) -> None:
        self._node = node
        self.name = name
        self._looked_up: tuple[Sequence[bytes], list[Route]] | None = None
        """Topics looked up last in this turn, and their routes; one route if all topics are
        equal."""
        self.connection: ClientConnection | None = None
        """The publishing connection, which is slowed down for receivers that do not keep up."""

    def publish(self, packet: Publishes) -> None:
        """Publish admitted messages that take effect at once: those of QoS 0 and 1."""
        if not packet.qos and not packet.retain:
            for part, is_recorded in self._recorded_parts(packet):
                if is_recorded:
                    self._publish_now(part)
                    continue
                whole = Batch(
                    0,
                    part.topics,
                    () if part.packets else part.payloads,
                    (),
                    packets=part.packets,
                    publisher=self.connection,
                    blocks=part.blocks,
                )
                self._route(part, whole, NOT_LOGGED)
            return
        parts: Iterable[Publishes] = self._split(packet)
        if not packet.qos:
            parts = self._node.retained_pace.recorded_now(self, parts)
        for part in parts:
            self._publish_now(part)

    def _recorded_parts(self, packet: Publishes) -> Iterator[tuple[Publishes, bool]]:
        """Yield messages at QoS 0 in order, in parts of which all are to be recorded, or none.

        One for which no record has room is not recorded.
        """
        node = self._node
        if not node.options.record_qos0:
            yield packet, False
            return
        routes, large = node.router.routes, frozenset(self.too_large(packet))
        recorded = [
            at not in large and routes[raw].recorded for at, raw in enumerate(packet.topics)
        ]
        for is_recorded, numbers in groupby(range(len(packet)), recorded.__getitem__):
            run = [*numbers]
            part = packet if len(run) == len(packet) else packet.select(run)
            for each in self._split(part) if is_recorded else [part]:
                yield each, is_recorded

    def publish_will(self, packet: Publishes, *, bridge: bool | str = False) -> None:
        """Publish a will of any QoS, unless it is refused."""
        for part in self._split(self._admit_by_topic(packet, bridge=bridge)):
            self._publish_now(part, will=True)

    def at_once(self, topics: Sequence[bytes], qos: int) -> int:
        """Return how many of these messages to route in one turn; 0: try again in the next one.

        Other work comes between the parts.
        """
        count = self._routed_at_once(topics, qos)
        if count and self._node.router.routes.any_observed:
            return self._observed_at_once(topics[:count])
        return count

    def _observed_at_once(self, topics: Sequence[bytes]) -> int:
        """Return how many of these messages precede one for which an observer is not ready."""
        node, routes = self._node, self._node.router.routes
        count = len(topics)
        for at, raw in enumerate(topics):
            if routes[raw].observed and not node.is_ready(raw):
                count = at
                break
        # The receivers of the topics themselves may have changed meanwhile.
        return count if all(raw in routes for raw in topics[:count]) else 0

    def _routed_at_once(self, topics: Sequence[bytes], qos: int) -> int:
        """Return how many of these messages to route, whether or not they are observed."""
        routes = self._node.router.routes
        first, length = topics[0], len(topics)
        route = routes.get(first)
        if (route is None or route.frozen) and not self.is_routed(first, qos):
            return 0
        if length == 1:
            return 1
        enough = self._enough()
        if enough is None:
            return 0
        if topics.count(first) == length:
            route = routes[first]
            self._looked_up = topics, [route]
            return same_route_at_once(route, length, qos, enough)
        message_routes = routes.look_up(topics)
        if routes.any_frozen:
            message_routes = self._activated(topics, message_routes, qos)
            if not message_routes:
                return 0
        self._looked_up = topics, message_routes
        return routes_at_once(message_routes, qos, enough)

    def is_routed(self, topic: bytes, qos: int) -> bool:
        """Return whether the receivers of a topic are known and active; otherwise see to it.

        That takes several turns if there are many: ask again in the next one.
        """
        routes, activation = self._node.router.routes, self._node.activation
        if activation.goes_on(topic) or not routes.knows(topic):
            return False
        frozen = routes[topic].to_activate(qos)
        if not frozen:
            return True
        return bool(activation.activate([(topic, frozen)])) and routes.knows(topic)

    def _activated(
        self, topics: Sequence[bytes], message_routes: list[Route], qos: int
    ) -> list[Route]:
        """Activate the frozen receivers of messages; return the first routes without any."""
        frozen_of: dict[bytes, tuple[str, ...]] = {}
        for topic, route in zip(topics, message_routes, strict=False):
            if route.frozen:
                frozen = route.to_activate(qos)
                if frozen:
                    frozen_of[topic] = frozen
        if not frozen_of:
            return message_routes
        count = self._node.activation.activate(frozen_of.items())
        if count < len(frozen_of):
            waits = [*frozen_of][count]
            message_routes = message_routes[: topics.index(waits)]
        return (
            self._node.router.routes.look_up(topics[: len(message_routes)])
            if message_routes
            else message_routes
        )

    def _enough(self) -> float | None:
        """Return the microseconds of work left to the client in this turn; None: none are left."""
        node = self._node
        shared = node.kernel.shared
        if node.router.deliveries > (_DELIVERIES_SHARED if shared else _DELIVERIES):
            return None
        if not shared:
            return _ENOUGH
        return _ENOUGH_SHARED if self.connection is None else _ENOUGH_SHARED * self.connection.pace

    def route_unrecorded(self, packet: Publishes, *, taken: bool = True) -> None:
        """Route QoS 0 messages, which are not recorded; ``taken`` are those of another broker."""
        content, whole = self._unrecorded(packet)
        self._route(content, whole, NOT_LOGGED, taken=taken)

    def _publish_now(
        self,
        packet: Publishes,
        *,
        will: bool = False,
        accepts: Callable[[Subscriber], bool] | None = None,
    ) -> Position:
        """Record messages and route them; return the position of the first one."""
        content = self.record(packet, will=will)
        first = content.first
        refs = range(first, first + len(packet))
        if packet.qos == 2 and not will:
            pids = to_runs(packet.packet_ids)
            self._node.emit(Released(self.name, pids, refs=to_runs(refs)))
        whole = self._batch(packet.qos, content, refs, packet.retain, gated=will)
        self._route(content, whole, (first, refs[-1]), accepts=accepts)
        return first

    def store(self, packet: Publishes) -> None:
        """Record admitted QoS 2 messages; they take effect when they are released."""
        for part in self._split(packet):
            self.record(part, will=False)

    def release(
        self,
        refs: Sequence[Position],
        messages: Sequence[Message],
        took_effect: tuple[Position, Position],
        *,
        retain: bool,
    ) -> None:
        """Route released QoS 2 messages, either all retained or none.

        ``took_effect`` are the positions of the first and the last entry of the release. Since the
        messages were received, their expiry has counted down; expired ones are not delivered.
        """
        now_ms, passed = self._node.clock.steady_ms(), self._node.expired_until
        for is_expired in (False, True):
            chosen = [
                (ref, message)
                for ref, message in zip(refs, messages, strict=True)
                if (0 < message.expires <= passed) is is_expired
            ]
            if not chosen:
                continue
            part = [message for _, message in chosen]
            payloads = [message.payload for message in part]
            topics = [message.topic for message in part]
            content = StoredMessages(chosen[0][0], topics, payloads, sum(map(len, payloads)))
            if any(message.block for message in part):
                content = content._replace(
                    blocks=remaining_properties(part, now_ms),
                    expires=[message.expires for message in part],
                )
            positions = [ref for ref, _ in chosen]
            whole = self._batch(2, content, positions, retain, expired=is_expired)
            self._route(content, whole, took_effect)

    def too_large(self, packet: Publishes) -> Sequence[int]:
        """Return the indices of messages for which no record has room.

        Such a message has names that take too much space in JSON, or NATS has lowered its limit.
        """
        payloads, blocks = packet.payloads, packet.blocks or ()
        largest = max(map(len, payloads), default=0) + max(map(len, blocks), default=0)
        if largest + NAMES <= self._node.journal.max_event:
            return ()
        columns = zip_longest(packet.topics, payloads, blocks, fillvalue=b"")
        return [at for at, column in enumerate(columns) if not self.fits(*column)]

    def fits(self, topic: bytes, payload: bytes, block: bytes = b"", share: str = "") -> bool:
        """Return whether a record has room for a message of this publisher."""
        size = len(payload) + len(block)
        return self._node.journal.has_room(size, self.name, topic.decode(), share)

    def _admit_by_topic(self, packet: Publishes, *, bridge: bool | str = False) -> Publishes:
        """Return the messages of a will, or from NATS, that may be published."""
        node = self._node
        admitted = publish_admission.admit_by_topic(packet, node.publish_rules, bridge=bridge)
        for reason, topics in admitted.drops:
            self.drop(reason, topics, recorded=True)
        return admitted.accepted

    def drop(self, reason: str, topics: Sequence[bytes], *, recorded: bool) -> None:
        """Count dropped messages on these topics; ``recorded``: they would have been."""
        node = self._node
        if recorded:
            node.drop_unrecorded(self.name, reason, topics)
        else:
            node.count_dropped(reason, len(topics), client=self.name, position=None)
        if reason in (publish_admission.TOPIC_LEVELS, publish_admission.PERSONAL_KEYS):
            node.limits.refused.add(reason, node.clock.monotonic(), len(set(topics)))

    def _split(self, packet: Publishes) -> list[Publishes]:
        """Return messages in parts that each fit into a record."""
        return split_for_records(packet, self._node.options.max_record // 2)

    def record(
        self,
        packet: Publishes,
        *,
        will: bool = False,
        origins: Sequence[Run] = (),
        share: str = "",
    ) -> StoredMessages:
        """Append a MessagePublished; return the messages that it records."""
        topics, payloads = packet.topics, packet.payloads
        distinct = dict.fromkeys(topics)
        which: list[int] = []
        if len(distinct) > 1:
            number = {raw: at for at, raw in enumerate(distinct)}
            which = list(map(number.__getitem__, topics))
        sizes = list(map(len, payloads))
        size = sum(sizes)
        count = len(sizes)
        distinct_blocks, block_sizes, block_of = block_columns(packet.blocks or ())
        blocks: Sequence[bytes] = packet.blocks if packet.blocks and distinct_blocks else ()
        event = MessagePublished(
            self.name,
            packet.qos,
            packet.retain,
            [raw.decode() for raw in distinct],
            which,
            to_runs(packet.packet_ids),
            sizes[0] if sizes.count(sizes[0]) == count else sizes,
            0,
            count,
            will,
            blocks=block_sizes,
            block_of=block_of,
            origins=origins,
            share=share,
        )
        pieces, space = payloads, size
        expires: Sequence[int] = ()
        if blocks:
            pieces, space = [*distinct_blocks, *payloads], size + sum(block_sizes)
        first = self._node.emit(event, pieces, space)
        if blocks:
            expires = expiries(blocks, self._node.journal.steady_ms)
        stored = StoredMessages(
            first, topics, payloads, size, blocks, expires, packet.retain, (self.name,)
        )
        self._node.messages.add(stored)
        return stored

    def _unrecorded(self, packet: Publishes) -> tuple[StoredMessages, Batch]:
        """Return messages from elsewhere that are not recorded, and the batch for all receivers."""
        content = StoredMessages(0, packet.topics, packet.payloads, 0, packet.blocks or ())
        return content, self._batch(0, content, (), packet.retain)

    def _batch(
        self,
        qos: int,
        content: StoredMessages,
        refs: Sequence[Position],
        retain: bool,
        *,
        gated: bool = False,
        expired: bool = False,
    ) -> Batch:
        """Return messages for all receivers.

        ``expired``: they are not delivered, which the log says for each receiver.
        """
        return Batch(
            qos,
            content.topics,
            content.payloads,
            refs,
            size=content.size,
            gated=gated,
            publisher=self.connection,
            blocks=content.blocks,
            expires=content.expires,
            published_retain=retain,
            expired=expired,
        )

    def _route(
        self,
        content: Publishes | StoredMessages,
        whole: Batch,
        took_effect: tuple[Position, Position],
        *,
        accepts: Callable[[Subscriber], bool] | None = None,
        taken: bool = False,
    ) -> None:
        """Pass messages on to their receivers and observers; ``whole`` is their batch.

        Those ``taken`` from another broker are not passed on to the other logs.
        """
        node = self._node
        plan = self._plan(content.topics, whole.qos, is_recorded=bool(whole.positions))
        publication: Publication | None = None
        bridge = node.bridge
        if node.observers or plan.observed or (bridge is not None and not whole.qos):
            publication = Publication(
                self.name, whole, content, took_effect, taken, accepts is not None
            )
            node.notify_observers(publication)
        if bridge is not None and whole.qos and not taken and isinstance(content, StoredMessages):
            retain, publishers = whole.published_retain, (self.name,)
            content = content._replace(retain=retain, publishers=publishers)
            bridge.recorded(whole.qos, content, whole.positions, took_effect[0])
        if node.exchange is not None and not taken:
            node.exchange.published(whole)
        for targets, chosen in plan.deliveries:
            batch = whole if chosen is None else whole.select(chosen)
            self.send(
                targets if accepts is None else self._filter_targets(accepts, targets, batch), batch
            )
        if plan.withheld and whole.positions:
            self._record_denied(plan.withheld, whole.positions)
        if publication is not None and plan.observed:
            self._notify_topic_observers(publication)

    def _notify_topic_observers(self, publication: Publication) -> None:
        for observer in self._node.topic_observers:
            observer.published(publication)

    def _record_denied(self, withheld: Sequence[SomeMessages], refs: Sequence[Position]) -> None:
        """Record messages withheld from subscribers that may not read them.

        Each subscriber is sent a message, as receivers are, so that a turn with many of them can be
        split.
        """
        lost: dict[Subscriber, list[int]] = defaultdict(list)
        for denied, chosen in withheld:
            for subscriber in denied:
                if subscriber.qos:
                    lost[subscriber] += range(len(refs)) if chosen is None else chosen
        node = self._node
        self._count_caused(sum(map(len, lost.values())))
        for subscriber, numbers in lost.items():
            missed = [refs[at] for at in sorted(numbers)]
            actor = subscriber.actor
            if actor is not None and not actor.stopped:
                node.kernel.tell(actor, DeniedMessages(missed))
            else:
                node.drop(subscriber.session, "not_permitted", missed, subscriber.filter)

    def _filter_targets(
        self, accepts: Callable[[Subscriber], bool], targets: Sequence[Subscriber], batch: Batch
    ) -> list[Subscriber]:
        """Return the subscribers that may receive a batch; record drops for the others."""
        chosen: list[Subscriber] = []
        for target in targets:
            if accepts(target):
                chosen.append(target)
            elif batch.qos and target.qos:
                self._node.drop(target.session, "other_prefix", batch.positions, target.filter)
        return chosen

    def _plan(self, topics: Sequence[bytes], qos: int, *, is_recorded: bool) -> RoutingPlan:
        """Return the receivers of messages on these topics, which are active from now on."""
        node, routes = self._node, self._node.router.routes
        looked_up, self._looked_up = self._looked_up, None
        message_routes = None
        if looked_up is not None and looked_up[0] is topics:
            message_routes = looked_up[1]
        plan = plan_routing(
            routes.of_messages(topics, message_routes, is_recorded=is_recorded), qos
        )
        if plan.frozen:
            for name in plan.frozen:
                node.directory.session(name)
            plan = plan_routing(routes.of_messages(topics, is_recorded=is_recorded), qos)
        return plan

    def send(self, targets: Sequence[Subscriber], batch: Batch) -> None:
        """Send a batch to subscribers."""
        self._count_caused(len(targets) * len(batch))
        work = self._node.turn_work
        if work.pending or len(targets) > work.at_once:
            # The subscriptions may change before the last step.
            own = self._own(batch)
            work.begin(self._send_in_steps(targets, batch, own, work.at_once))
        else:
            self._send_now(targets, batch, None)

    def _send_in_steps(
        self, targets: Sequence[Subscriber], batch: Batch, own: _Own, at_once: int
    ) -> Iterator[object]:
        for begin in range(0, len(targets), at_once):
            self._send_now(targets[begin : begin + at_once], batch, own)
            yield None

    def _send_now(self, targets: Sequence[Subscriber], batch: Batch, own: _Own | None) -> None:
        """Send a batch to subscribers; ``own`` are the receivers in this session, if known."""
        for target in targets:
            if target.options and is_no_local(target.options) and target.session == self.name:
                receivers = self._own(batch) if own is None else own
                for subscriber, chosen in receivers.items():
                    self._send_to(subscriber, batch.select(chosen))
                continue
            actor = target.actor
            if actor is not None and not actor.stopped:
                enqueue(actor, batch, target)
            else:
                self._send_to(target, batch)

    def _send_to(self, target: Subscriber, batch: Batch) -> None:
        """Send a batch to a subscriber that may have no actor."""
        node, actor = self._node, target.actor
        if actor is not None and not actor.stopped:
            enqueue(actor, batch, target)
            return
        if target.ended:
            return
        # Without an actor the session is offline and gets no QoS 0 messages. If the actor failed in
        # this turn, the session receives in its place. A shared subscription has members.
        qos = batch.qos if batch.qos < target.qos else target.qos
        if qos or actor is not None or is_shared(target.session):
            node.kernel.tell(node.directory.session(target.session), Outgoing(target, batch, qos))

    def _own(self, batch: Batch) -> _Own:
        """Return the session's subscriptions without No Local, where others of it have that."""
        own: _Own = {}
        for at, route in enumerate(map(self._node.router.routes.__getitem__, batch.topics)):
            subscriber = route.own.get(self.name)
            if subscriber is not None:
                own.setdefault(subscriber, []).append(at)
        return own

    def _count_caused(self, deliveries: int) -> None:
        """Count deliveries and withheld messages as work that the client causes."""
        if self.connection is not None:
            self.connection.caused += deliveries
            self._node.router.deliveries += deliveries


def split_for_records(packet: Publishes, limit: int) -> list[Publishes]:
    """Return a packet in parts that take at most ``limit`` bytes of a record, without names.

    Each part has at least one message.
    """
    payloads, topics = packet.payloads, packet.topics
    count = len(payloads)
    blocks: Sequence[bytes] = packet.blocks or ()
    size = sum(map(len, payloads)) + ESCAPED * sum(map(len, topics)) + ENTRY_BYTES * count
    size += sum(map(len, blocks))
    if count <= 1 or size <= limit:
        return [packet] if count else []
    parts: list[range] = []
    begin = total = 0
    for at, payload in enumerate(payloads):
        need = len(payload) + ESCAPED * len(topics[at]) + ENTRY_BYTES
        if blocks:
            need += len(blocks[at])
        total += need
        if total > limit and at > begin:
            parts.append(range(begin, at))
            begin, total = at, need
    parts.append(range(begin, count))
    return [packet.select(part) for part in parts]
