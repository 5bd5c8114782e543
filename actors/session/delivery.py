"""Deliveries to a client at QoS 0, 1 and 2, the session's queue, and redelivery.

Each session actor has one :class:`Delivery`. It tracks which messages are in memory; while others
are read from the log, the session defers everything but deliveries.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, groupby, islice, takewhile
from typing import TYPE_CHECKING

from actors.node import BACKLOG, Backlog, ReadPause
from actors.routing import is_retain_as_published, is_shared
from actors.session import decisions
from actors.session.session_messages import AckCheck, Batch, ContinueSending, Outgoing
from eventstore.format import (
    INDEX_BITS,
    Delivered,
    Expired,
    MessageDropped,
    Position,
    Queued,
    Redelivered,
    entries,
    expired_until,
    format_position,
    to_runs,
)
from eventstore.log import LARGE_PAYLOAD, Message, StoredMessages
from projections.state import QOS_MASK, RAP_FLAG, RETAIN_FLAG
from protocol.mqtt import PacketType, PublishEncoder, encode_acks
from protocol.mqtt5 import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from actors.routing import Subscriber
    from actors.session.interfaces import ClientConnection
    from actors.session.mqtt5 import DeliveryEncoder
    from actors.session.node_context import NodeContext
    from actors.session.session import Session
    from projections.state import InFlight, SubscriptionState

_DRAIN_AT_ONCE = 1024
"""Messages taken from the queue in one step."""
_REACH, _REACH_GROWS = 8, 4
_EXPIRED_WITHIN = 1024
"""Runs of a queue that are searched for expired messages."""
_QUEUES_AT_ONCE = 16
"""Queues of a session searched in one turn: a session may have thousands."""
_AGAIN_AT_ONCE = 256
"""Messages redelivered in one step."""
_AGAIN_STEPS = 4
"""Redelivery steps in one turn."""
_ACKS_UNREAD = 1.0
"""Seconds between checks for acknowledgements of a client whose input is not handled."""
_GATED_FACTOR = 4
"""Bytes at the gate for all clients together, as a multiple of those for one client."""
_HELD_MESSAGES = 65_536
"""Maximum messages kept in memory for a connected client whose window is full."""


class Delivery:
    """Delivers messages to the client of one session."""

    __slots__ = (
        "_ack_check_set",
        "_after_load",
        "_backlog",
        "_dropped",
        "_expired_at",
        "_expired_from",
        "_held",
        "_held_bytes",
        "_in_hand",
        "_node",
        "_prefetch_limit",
        "_redelivery",
        "_resent",
        "_sending_queued",
        "_session",
        "encoder",
        "resumed",
        "sent_from_queue",
    )

    def __init__(self, node: NodeContext, session: Session) -> None:
        self._node = node
        self._session = session
        self._ack_check_set = False
        self._redelivery: deque[int] | None = None
        """Packet identifiers that remain to be redelivered after a reconnect; None: none."""
        self._resent: dict[tuple[int, bool], InFlight] | None = None
        """Unfinished deliveries that were sent again because of ``ack_wait``, as they were before:
        by packet identifier, and whether their PUBREL was sent again; None: none."""
        self.resumed = False
        """Whether deliveries were unfinished when the client connected."""
        self._after_load: Callable[[], None] | None = None
        self._dropped = False
        """Whether queued messages were dropped instead of sent."""
        self._sending_queued = False
        """Whether sending continues in another turn."""
        self.encoder: DeliveryEncoder | None = None
        """Encodes deliveries to an MQTT 5 client; None for other clients."""
        self._expired_at = 0
        """The last second in which the queues contained no expired messages."""
        self._expired_from = 0
        """Number of the queue at which the search for expired messages continues."""
        self._backlog: Backlog | None = None
        """Publishers that wait until fewer messages are queued for this client; None: there are
        none."""
        self.sent_from_queue = 0
        """Number of messages sent from the queue."""
        self._held: dict[Position, Message] | None = None
        """Messages kept in memory for this client; None: there are none."""
        self._held_bytes = 0
        self._prefetch_limit = _REACH
        """Maximum records read from the log at once."""
        self._in_hand: tuple[Outgoing | None, int] = (None, 0)

    @property
    def loading(self) -> bool:
        """True while messages are being read from the log."""
        return self._after_load is not None

    @property
    def resuming(self) -> bool:
        """True while messages remain to be redelivered after a reconnect."""
        return bool(self._redelivery)

    @property
    def packet_limit(self) -> int:
        """Maximum packet size of the client in bytes; 0: unlimited."""
        return self.encoder.limit if self.encoder is not None else 0

    def too_large(self, message: Outgoing) -> list[int]:
        """Return the numbers of a batch's messages that exceed the client's maximum packet size."""
        subscriber, batch, qos = message
        return self.encoder.too_large(batch, subscriber, qos) if self.encoder is not None else []

    def deliver(self, message: Outgoing) -> None:
        """Send, queue or drop messages for one of the session's subscriptions."""
        subscriber, batch, qos = message
        if (
            subscriber.ended
            or self._node.state.sessions.get(self._session.name) is not self._session.state
        ):
            return
        if batch.expired:
            self._expire_unsent(message)
            return
        encoder, connection = self.encoder, self._session.connection
        # A client that is away may come back with another limit.
        if encoder is not None and encoder.limit and connection is not None:
            batch = self._without_too_large(encoder, message)
            if not len(batch):
                return
        if not qos:
            self._send_qos0(subscriber, batch)
            return
        self._make_room_for(subscriber)
        ready = connection is not None and self._may_send(connection) and not self._redelivery
        delivery = decisions.deliver(
            self._session.state,
            subscriber.filter,
            qos,
            batch.positions,
            batch.payloads,
            batch.size,
            self._node.delivery_limits,
            retain=batch.retain,
            ready=ready,
            rap=encoder is not None
            and batch.published_retain
            and is_retain_as_published(subscriber.options),
            expires=batch.expires,
        )
        sent = len(delivery.packet_ids)
        covered = queued = 0
        for event in delivery.events:
            at = self._session.emit(event)
            covered += entries(event)
            self._in_hand = (message, covered)
            if type(event) is MessageDropped:
                self._count_dropped(event, at)
            elif type(event) is Queued:
                queued = covered
        if sent and connection is not None:
            self._send(connection, subscriber, batch, qos, delivery.packet_ids)
            self.expect_acks()
        if connection is not None and sent < queued:
            self._hold(batch, sent, queued)
            if self._session.state.queued > BACKLOG:
                for publisher, count in batch.by_publisher():
                    self._slow_down(publisher, connection, count)
        if connection is None:
            self._session.last_active = self._node.clock.monotonic()

    def _expire_unsent(self, message: Outgoing) -> None:
        """Record that messages had expired before they could be sent [MQTT-3.3.2-5]."""
        subscriber, batch, qos = message
        name, state = self._session.name, self._session.state
        self._node.count_dropped("expired", len(batch), client=name)
        if not qos:
            return
        topic_filter = decisions.goes_behind(state, subscriber.filter) or subscriber.filter
        for numbers in decisions.in_parts(range(len(batch))):
            some = batch.select(numbers)
            refs, payloads, expires = some.positions, some.payloads, some.expires
            for event in decisions.queued(
                name, topic_filter, qos, refs, payloads, retain=False, expires=expires
            ):
                self._session.emit(event)
            self._in_hand = (message, numbers[-1] + 1)
            self._session.emit(Expired(name, topic_filter, to_runs(refs), some.size))

    def _send(
        self,
        connection: ClientConnection,
        subscriber: Subscriber,
        batch: Batch,
        qos: int,
        packet_ids: Sequence[int],
    ) -> None:
        """Send the first messages of a batch, one for each packet identifier."""
        journal, encoder, count = self._node.journal, self.encoder, len(packet_ids)
        if batch.size >= LARGE_PAYLOAD * len(batch):
            pieces = (
                [*batch.prepared(qos).pieces(packet_ids, 0, count)]
                if encoder is None
                else encoder.pieces(batch, subscriber, qos, packet_ids, count)
            )
            size = journal.send_pieces_when_durable(connection, pieces)
        else:
            data = (
                batch.prepared(qos).render(packet_ids, 0, count)
                if encoder is None
                else encoder.render(batch, subscriber, qos, packet_ids, count)
            )
            journal.send_when_durable(connection, data)
            size = len(data)
        self._node.counters.gave(connection, qos, count, size)

    def _slow_down(
        self, publisher: ClientConnection, connection: ClientConnection, count: int
    ) -> None:
        """Pause a publisher until the client has taken some of its queued messages."""
        if publisher is connection:
            return
        if self._backlog is None:
            self._backlog = Backlog(self._node.timers, self._node.clock, self._backlog_of)
        self._backlog.hold(publisher, count)

    def _backlog_of(self) -> tuple[int, int]:
        return self._session.state.queued, self.sent_from_queue

    def may_send(self, connection: ClientConnection) -> bool:
        """Return whether a new message may be sent to the client."""
        return not self._redelivery and self._may_send(connection)

    @property
    def hindrance(self) -> str:
        """The reason why nothing new can be sent to the client at QoS 1 and 2; empty: none.

        ``offline``, ``resuming`` (older messages are redelivered first), ``reader`` (the client
        does not read), ``loading`` (messages are read from the log) or ``log`` (the log does not
        keep up).
        """
        connection = self._session.connection
        if connection is None:
            return "offline"
        if self._redelivery:
            return "resuming"
        if not connection.writable:
            return "reader"
        if self._after_load is not None:
            return "loading"
        limit, gated = self._node.delivery_limits.batch_bytes, connection.gated
        late = gated and (gated > limit or self._node.journal.gated > _GATED_FACTOR * limit)
        return "log" if late else ""

    def _may_send(self, connection: ClientConnection) -> bool:
        """Return whether more may be sent to the client."""
        if not connection.writable or self._after_load is not None:
            return False
        limit = self._node.delivery_limits.batch_bytes
        gated = connection.gated
        if gated and (gated > limit or self._node.journal.gated > _GATED_FACTOR * limit):
            # The log does not keep up. Queued messages cost no memory until it does.
            connection.starved = True
            return False
        return True

    def _hold(self, batch: Batch, start: int, stop: int) -> None:
        """Keep messages queued for a connected client in memory, as they will be sent soon."""
        held = self._held if self._held is not None else {}
        within = self._held_bytes + batch.size <= self._node.delivery_limits.batch_bytes
        if within and len(held) < _HELD_MESSAGES:
            self._held = held
            payloads = batch.payloads[start:stop]
            self._held_bytes += sum(map(len, payloads))
            stored = StoredMessages(
                0,
                batch.topics,
                batch.payloads,
                batch.size,
                batch.blocks or (),
                batch.expires,
                batch.published_retain,
                () if batch.publisher is None else (batch.publisher.client_id or "",),
            )
            messages = map(stored.message, range(start, stop))
            held.update(zip(batch.positions[start:stop], messages, strict=True))

    def _without_too_large(self, encoder: DeliveryEncoder, message: Outgoing) -> Batch:
        """Return a batch without messages too large for the client; record those as dropped."""
        subscriber, batch, qos = message
        large = encoder.too_large(batch, subscriber, qos)
        if not large:
            return batch
        name = self._session.name
        reason, topic_filter = "packet_too_large", subscriber.filter
        if qos:
            refs = [batch.positions[at] for at in large]
            events = decisions.dropped(name, reason, refs, topic_filter)
        else:
            topics = [batch.topics[at] for at in large]
            events = [decisions.dropped_unrecorded(name, reason, topics, topic_filter)]
        for event in events:
            self._session.emit(event)
        self._node.count_dropped("packet_too_large", len(large), client=name)
        gone = set(large)
        return batch.select([at for at in range(len(batch)) if at not in gone])

    def _send_qos0(self, subscriber: Subscriber, batch: Batch) -> None:
        connection = self._session.connection
        if connection is None:
            return
        node = self._node
        if connection.unsent < node.options.max_outbound_bytes:
            gated = batch.gated or bool(batch.qos and not batch.retain)
            if self.encoder is None:
                data = batch.at_qos0()
            else:
                data = self.encoder.render(batch, subscriber, 0, gated=gated)
            if gated:
                # The publication is being recorded. Until it is, a crash may undo it, and its
                # publisher may send it again: no client may have seen it by then [MQTT-4.3.3-2].
                node.journal.send_when_durable(connection, data)
            else:
                node.journal.send_unlogged(connection, data)
            node.counters.gave(connection, 0, len(batch), len(data))
            if not connection.writable and batch.publisher is not None and not batch.qos:
                connection.throttle_publisher(batch.publisher, len(batch))
            return
        event = decisions.dropped_unrecorded(self._session.name, "slow_reader", batch.topics)
        self._count_dropped(event, self._session.emit(event))

    def _count_dropped(self, event: MessageDropped, at: Position) -> None:
        name = self._session.name
        self._node.count_dropped(
            event.reason, event.count, client=name, position=format_position(at)
        )

    def send_queued(self) -> None:
        """Send queued messages, including those of shared subscriptions, as the windows allow."""
        groups = self._node.router.groups
        if groups.waiting:
            groups.has_room(self._session.name)
        self._send_own_queue()

    def _send_own_queue(self) -> None:
        connection, state = self._session.connection, self._session.state
        if self._backlog is not None and state.queued <= BACKLOG // 2:
            self._backlog.release()
        if self._redelivery:
            self._redeliver_more()
        if connection is None or self._redelivery or not state.queued:
            return
        if not self._may_send(connection):
            return
        limits = self._node.delivery_limits
        typical = state.queued_bytes // state.queued
        most = self._session.at_once(_DRAIN_AT_ONCE)
        most = max(1, min(most, limits.batch_bytes // (typical + 1)))
        runs = decisions.next_waiting(state, limits.window, most)
        if not runs:
            return
        refs = [ref for run in runs for ref in run.refs]
        found = self._cached(refs)
        if not found:
            self.load(self._prefetch(refs), self.send_queued)
            return
        budget = limits.batch_bytes
        for run in runs:
            # A message may be queued twice: retained, and requested twice. Messages behind a gap
            # wait.
            chosen = [found[ref] for ref in takewhile(found.__contains__, run.refs)]
            if not chosen:
                break
            count = decisions.within([message.payload for message in chosen], budget)
            budget -= self._send_permitted(connection, run, chosen[:count])
            if budget <= 0 or count < len(chosen):
                if self._dropped:  # no acknowledgement will follow for these
                    break
                # The rest follows when these are acknowledged or the transport has room.
                return
            if len(chosen) < len(run.refs):
                break
        if self._dropped:  # no acknowledgement will follow for these
            self._dropped = False
            self._send_queued_later()
        elif len(found) < len(refs):
            self.send_queued()

    def _send_queued_later(self) -> None:
        """Continue sending in another turn, after other work."""
        if not self._sending_queued:
            self._sending_queued = True
            self._session.kernel.later(self._session, ContinueSending())

    def continue_sending(self) -> None:
        """Send more queued messages."""
        self._sending_queued = False
        self.send_queued()

    def _cached(self, refs: Sequence[Position]) -> dict[Position, Message]:
        """Return the messages at these positions, up to the first one that must be loaded."""
        found: dict[Position, Message] = {}
        held, store = self._held, self._node.messages
        for ref in refs:
            message = (held.get(ref) if held is not None else None) or store.get(ref)
            if message is None:
                break
            found[ref] = message
        return found

    def _prefetch(self, refs: Sequence[Position]) -> list[Position]:
        """Return the first of these positions to load now: few at first, then more.

        A client that reconnects does not have to wait until all its missed messages have been read.
        """
        records: set[int] = set()
        for count, ref in enumerate(refs):
            records.add(ref >> INDEX_BITS)
            if len(records) > self._prefetch_limit:
                self._prefetch_limit *= _REACH_GROWS
                return list(refs[:count])
        return list(refs)

    def _send_permitted(
        self, connection: ClientConnection, run: decisions.WaitingRun, messages: list[Message]
    ) -> int:
        """Send the first messages of a run; drop those that the client may not or cannot receive.

        The messages were queued while the client was offline or had other permissions. Returns the
        payload bytes sent.
        """
        access, encoder = connection.access, self.encoder
        limited = encoder is not None and encoder.limit
        times = {message.expires for message in messages}
        times.discard(0)
        if access is None and not limited and not times:
            return self._send_waiting(connection, run, messages)
        now_ms, flags = self._node.clock.time_ms(), (run.qos, run.retain)
        of = run.held if run.retain else None
        passed = expired_until(now_ms)
        if access is None and not limited and min(times) > passed:
            return self._send_waiting(connection, run, messages)

        def why_not(message: Message) -> str:
            if 0 < message.expires <= passed:
                return "expired"
            if access is not None and not access.read[message.topic]:
                return "not_permitted"
            if encoder is not None and encoder.is_too_large(message, flags, now_ms, of):
                return "packet_too_large"
            return ""

        size = at = 0
        for reason, group in groupby(messages, why_not):
            some = [*group]
            part = run._replace(refs=run.refs[at : at + len(some)])
            at += len(some)
            if not reason:
                size += self._send_waiting(connection, part, some)
                continue
            queued = sum(len(message.payload) for message in some)
            self._dropped = True
            self._drop_waiting(reason, part, queued)
            self.release(part.refs)
        return size

    def _make_room_for(self, subscriber: Subscriber) -> None:
        """Drop expired messages from full queues, unless a shared subscription sends to the client.

        It chose the client because there is room, and would have to wait for reads from the log.
        """
        if not is_shared(subscriber.filter):
            self.make_room()

    def make_room(self) -> None:
        """Drop expired messages from queues that are at least half full.

        The first messages of each queue are searched: messages that expire last are mostly behind
        them. Messages that are not in memory are read from the log, as their sizes must be known.
        """
        state, limits = self._session.state, self._node.delivery_limits
        filling = (
            2 * state.queued >= limits.queued_messages
            or 2 * state.queued_bytes >= limits.queued_bytes
        )
        now = expired_until(self._node.clock.time_ms())
        if filling and self._expired_at < now and not self.loading:
            self._expire_some(now)

    def _expire_some(self, now: int) -> None:
        """Record those expired messages of some queues that are in memory."""
        left, begin = _DRAIN_AT_ONCE, self._expired_from
        waiting = self._session.state.waiting.values()
        some = [*islice(waiting, begin, begin + _QUEUES_AT_ONCE)]
        for held in some:
            queue = held.queue
            gone = queue.expired(now, left, _EXPIRED_WITHIN) if queue is not None else []
            if not gone:
                continue
            found = self._cached(gone)
            if not found:
                self.load(self._prefetch(gone), self.make_room)
                return
            refs = [ref for ref in gone if ref in found]
            size = sum(len(found[ref].payload) for ref in refs)
            name = self._session.name
            self._session.emit(Expired(name, held.filter, to_runs(refs), size))
            self._node.count_dropped("expired", len(refs), client=name)
            self.release(refs)
            left -= len(refs)
            if left <= 0:
                return
        self._expired_from = begin + _QUEUES_AT_ONCE
        if len(some) < _QUEUES_AT_ONCE:
            self._expired_from = 0
            if left == _DRAIN_AT_ONCE:
                self._expired_at = now

    def _drop_waiting(self, reason: str, run: decisions.WaitingRun, queued: int) -> None:
        """Record that messages leave the head of a queue unsent."""
        name, topic_filter = self._session.name, run.held.filter
        if reason == "not_permitted":
            self._node.drop_denied(name, run.refs, topic_filter, queued)
        elif reason == "expired":
            self._session.emit(Expired(name, topic_filter, to_runs(run.refs), queued))
            self._node.count_dropped("expired", len(run.refs), client=name)
        else:
            for event in decisions.dropped(name, reason, run.refs, topic_filter, queued):
                self._count_dropped(event, self._session.emit(event))

    def _send_waiting(
        self, connection: ClientConnection, run: decisions.WaitingRun, messages: list[Message]
    ) -> int:
        """Send the first messages of a run; return their payload bytes."""
        encoder = self.encoder
        if encoder is None or run.retain or not any(message.retain for message in messages):
            return self._send_run(connection, run, messages, rap=False)
        size = at = 0
        for rap, group in groupby(
            messages, lambda one: one.retain and encoder.is_as_published(one.topic)
        ):
            some = [*group]
            part = run._replace(refs=run.refs[at : at + len(some)])
            at += len(some)
            size += self._send_run(connection, part, some, rap=rap)
        return size

    def _send_run(
        self,
        connection: ClientConnection,
        run: decisions.WaitingRun,
        messages: list[Message],
        *,
        rap: bool,
    ) -> int:
        """Send the first messages of a run; ``rap``: with RETAIN, as they were published."""
        count = len(messages)
        refs = run.refs[:count]
        packet_ids = decisions.take_packet_ids(self._session.state, count)
        size = sum(len(message.payload) for message in messages)
        event = Delivered(
            self._session.name,
            run.held.filter,
            run.qos,
            pids=to_runs(packet_ids),
            refs=to_runs(refs),
            retain=run.retain,
            queued=size,
            rap=rap,
        )
        self._session.emit(event)
        # Retained messages are sent because of one subscription [MQTT-3.3.1-9].
        of = run.held if run.retain else None
        data = self._encode(messages, (run.qos, run.retain or rap), packet_ids, of=of)
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.gave(connection, run.qos, count, len(data))
        self.sent_from_queue += count
        self.release(refs)
        self.expect_acks()
        return size

    # Redelivery.

    def attach(self, encoder: DeliveryEncoder | None) -> None:
        """Begin deliveries to a client that connected; ``encoder`` is that of an MQTT 5 client."""
        self.encoder = encoder
        self._resent = None
        self.resumed = False
        if encoder is not None:
            encoder.attach(self._session.state, self._session.connection)

    def complete_encoder(self, most: int) -> bool:
        """Index at most ``most`` missing filters; return whether some are still missing."""
        return self.encoder is not None and self.encoder.complete(most)

    @property
    def v5(self) -> bool:
        """Whether messages are encoded for an MQTT 5 client."""
        return self.encoder is not None

    def subscriptions_changed(self, filters: Iterable[str]) -> None:
        """Update the encoder for the subscriptions with these filters."""
        if self.encoder is not None:
            self.encoder.subscriptions_changed(filters)

    def _has_retain(self, flags: int) -> bool:
        """Return whether a delivery is redelivered with RETAIN."""
        return bool(flags & (RETAIN_FLAG if self.encoder is None else RETAIN_FLAG | RAP_FLAG))

    def _encode(
        self,
        messages: Sequence[Message],
        flags: tuple[int, bool],
        packet_ids: Sequence[int],
        *,
        dup: bool = False,
        of: SubscriptionState | None = None,
    ) -> bytes:
        """Encode queued or redelivered messages; ``flags`` are QoS and RETAIN.

        ``of`` is the subscription if there is only one: for shared subscriptions and retained
        messages.
        """
        if self.encoder is not None:
            now_ms = self._node.clock.time_ms()
            return self.encoder.render_messages(messages, flags, packet_ids, now_ms, dup=dup, of=of)
        topics = [message.topic for message in messages]
        payloads = [message.payload for message in messages]
        prepared = PublishEncoder(topics, payloads, flags[0], retain=flags[1])
        return prepared.render(packet_ids, dup=dup)

    def resume(self) -> None:
        """Redeliver incomplete deliveries, then send queued messages [MQTT-4.4.0-1]."""
        state = self._session.state
        self._prefetch_limit = _REACH
        self._redelivery = deque(state.inflight) if state.inflight else None
        self.resumed = bool(state.inflight or state.releasing)
        if state.releasing:
            self._resend_pubrel(list(state.releasing), "resumed")
        self.send_queued()

    def _redeliver_more(self) -> None:
        """Continue redelivery after a reconnect, with no more at once than the client accepts."""
        connection, state = self._session.connection, self._session.state
        steps = 0
        while self._redelivery and connection is not None and self._may_send(connection):
            steps += 1
            if steps > _AGAIN_STEPS:
                self._send_queued_later()
                return
            room = self._room_again()
            if room <= 0:
                return
            chosen = list(islice(self._redelivery, min(_AGAIN_AT_ONCE, room)))
            unacked = [pid for pid in chosen if pid in state.inflight]
            if not self._end_too_large(unacked):
                return
            unacked = [pid for pid in unacked if pid in state.inflight]
            sent = self._republish(unacked, "resumed", self.send_queued)
            if not sent and unacked:
                return
            last = unacked[sent - 1] if sent < len(unacked) else None
            while self._redelivery:
                if self._redelivery.popleft() == (last if last is not None else chosen[-1]):
                    break

    def _end_too_large(self, unacked: Sequence[int]) -> bool:
        """End deliveries that exceed the client's new maximum packet size [MQTT-3.1.2-25].

        They end as if they had been sent. Returns False while their messages are read from the log.
        """
        encoder, state = self.encoder, self._session.state
        if encoder is None or not encoder.limit or not unacked:
            return True
        found = self.find([state.inflight[pid].ref for pid in unacked])
        if found is None:
            self.load([state.inflight[pid].ref for pid in unacked], self.send_queued)
            return False
        now_ms, large = self._node.clock.time_ms(), []
        for pid in unacked:
            sent = state.inflight[pid]
            flags = sent.flags & QOS_MASK, self._has_retain(sent.flags)
            of = sent.subscription if _is_alone(sent) else None
            if encoder.is_too_large(found[sent.ref], flags, now_ms, of):
                large.append(pid)
        for event in decisions.too_large(state, large):
            self._session.emit(event)
        if large:
            self._node.count_dropped("packet_too_large", len(large), client=self._session.name)
        return True

    def _room_again(self) -> int:
        """Return how many more messages the client accepts before it acknowledges some."""
        state = self._session.state
        sent = len(state.inflight) + len(state.releasing) - len(self._redelivery or ())
        return state.receive_maximum - max(0, sent)

    def _republish(self, unacked: Sequence[int], cause: str, again: Callable[[], None]) -> int:
        """Send PUBLISH packets again, with DUP; return how many, as their bytes are bounded.

        Returns 0 if their messages must be loaded first; then ``again`` is called after loading.
        """
        connection, state = self._session.connection, self._session.state
        if connection is None or not unacked:
            return 0
        found = self.find([state.inflight[pid].ref for pid in unacked])
        if found is None:
            self.load([state.inflight[pid].ref for pid in unacked], again)
            return 0
        payloads = [found[state.inflight[pid].ref].payload for pid in unacked]
        unacked = unacked[: decisions.within(payloads, self._node.delivery_limits.batch_bytes)]
        parts = []
        for (flags, of), run in _alike([(pid, state.inflight[pid]) for pid in unacked]):
            messages = [found[sent.ref] for _, sent in run]
            numbers = [pid for pid, _ in run]
            sent_as = flags & QOS_MASK, self._has_retain(flags)
            parts.append(self._encode(messages, sent_as, numbers, dup=True, of=of))
            self._node.counters.gave(connection, flags & QOS_MASK, len(run), len(parts[-1]))
        self.release([state.inflight[pid].ref for pid in unacked])
        if cause == "ack_wait":
            self._keep_first(unacked, released=False)
        self._session.emit(Redelivered(self._session.name, to_runs(unacked), cause))
        self._node.journal.send_when_durable(connection, b"".join(parts))
        self.expect_acks()
        return len(unacked)

    def _resend_pubrel(self, unreleased: Sequence[int], cause: str) -> None:
        """Send PUBREL packets again."""
        connection = self._session.connection
        if connection is not None:
            if cause == "ack_wait":
                self._keep_first(unreleased, released=True)
            self._session.emit(Redelivered(self._session.name, to_runs(unreleased), cause))
            self._node.journal.send_when_durable(
                connection, encode_acks(PacketType.PUBREL, unreleased)
            )
            self._node.counters.packets_out += len(unreleased)
            self.expect_acks()

    def _keep_first(self, pids: Iterable[int], *, released: bool) -> None:
        """Remember deliveries that are about to be sent again, which sets their time anew."""
        state = self._session.state
        table = state.releasing if released else state.inflight
        if self._resent is None:
            self._resent = {}
        for pid in pids:
            sent = table[pid]
            self._resent[pid, released] = self._first(pid, sent, released=released)

    def _first(self, pid: int, sent: InFlight, *, released: bool) -> InFlight:
        """Return an unfinished delivery as it was before it was sent again because of time."""
        first = self._resent.get((pid, released)) if self._resent is not None else None
        if first is None or first.ref != sent.ref or first.subscription is not sent.subscription:
            return sent  # the packet identifier may belong to another delivery now
        return first

    def _forget_completed(self) -> None:
        """Forget the first transmissions of deliveries that the client has completed."""
        if self._resent is None:
            return
        state = self._session.state
        kept: dict[tuple[int, bool], InFlight] = {}
        for (pid, released), first in self._resent.items():
            sent = (state.releasing if released else state.inflight).get(pid)
            if sent is not None and first.ref == sent.ref:
                kept[pid, released] = first
        self._resent = kept or None

    def oldest_ms(self, *, released: bool) -> int:
        """Return when the oldest unfinished delivery was first sent; 0: there is none.

        ``released``: when the first PUBREL was sent, of the deliveries that wait for PUBCOMP.
        Redelivery after ``ack_wait`` does not count, but that to a client that connected again.
        """
        state = self._session.state
        table = state.releasing if released else state.inflight
        if not self._resent:
            return min([sent.sent_ms for sent in table.values()], default=0)
        first = self._first
        times = [first(pid, sent, released=released).sent_ms for pid, sent in table.items()]
        return min(times, default=0)

    def expect_acks(self) -> None:
        """Check after ``ack_wait`` for missing acknowledgements."""
        wait = self._node.options.ack_wait
        if self.encoder is not None:
            return  # no redelivery to a connected MQTT 5 client [MQTT-4.4.0-1]
        if wait and not self._ack_check_set:
            self._ack_check_set = True
            self._session.remind(self._node.timers, wait, self._remember_acks)

    def _remember_acks(self) -> None:
        if not self._session.stopped:
            self._session.kernel.tell(self._session, AckCheck())

    def check_acks(self) -> None:
        """Redeliver messages that were not acknowledged within ``ack_wait``."""
        connection, state = self._session.connection, self._session.state
        wait = self._node.options.ack_wait
        nothing = not (state.inflight or state.releasing)
        self._forget_completed()
        if connection is None or not wait or nothing or self.encoder is not None:
            self._ack_check_set = False
            return
        if connection.unhandled or connection.paused:
            # Acknowledgements may be among the input that the broker has not handled yet.
            self._session.remind(self._node.timers, min(wait, _ACKS_UNREAD), self._remember_acks)
            return
        late = self._node.clock.time_ms() - int(wait * 1000)
        unacked = [pid for pid, sent in state.inflight.items() if sent.sent_ms <= late]
        unreleased = [pid for pid, sent in state.releasing.items() if sent.sent_ms <= late]
        delay = wait
        if self._may_send(connection) and not self._redelivery:
            if unreleased:
                self._resend_pubrel(unreleased, "ack_wait")
            if unacked:
                self._republish(unacked[:_AGAIN_AT_ONCE], "ack_wait", self.check_acks)
                if self._after_load is not None:
                    return
            oldest = min(
                sent.sent_ms for sent in chain(state.inflight.values(), state.releasing.values())
            )
            delay = wait - (self._node.clock.time_ms() - oldest) / 1000
        delay = min(wait, max(0.05, delay))
        self._session.remind(self._node.timers, delay, self._remember_acks)

    # Messages that are not in memory.

    def find(self, refs: Sequence[Position]) -> dict[Position, Message] | None:
        """Return the messages at these positions, or None if some must be loaded."""
        found = self._cached(refs)
        return found if len(found) == len(set(refs)) else None

    def load(self, refs: Sequence[Position], then: Callable[[], None]) -> None:
        """Read messages from the log, then call ``then``; other messages wait meanwhile."""
        self._after_load = then
        if self._session.connection is not None:
            self._session.connection.pause(ReadPause.LOADING)
        held = self._held or {}
        self._node.directory.load(self._session, [ref for ref in refs if ref not in held])

    def release(self, refs: Iterable[Position]) -> None:
        """Drop sent messages from memory."""
        held = self._held
        if held is not None:
            for ref in refs:
                gone = held.pop(ref, None)
                if gone is not None:
                    self._held_bytes -= len(gone.payload)
            if not held:
                self._held = None

    def loaded(self, found: dict[Position, Message]) -> None:
        """Store messages read from the log, and continue."""
        then, self._after_load = self._after_load, None
        if self._session.connection is not None:
            self._session.connection.resume(ReadPause.LOADING)
        if self._held is None:
            self._held = {}
        self._held.update(found)
        self._held_bytes += sum(len(message.payload) for message in found.values())
        if then is not None:
            then()

    def release_publishers(self) -> None:
        """Resume the publishers that wait for this client."""
        if self._backlog is not None:
            self._backlog.release()
            self._backlog = None

    def forget(self) -> None:
        """Drop all messages from memory and resume waiting publishers: the client has left."""
        self.release_publishers()
        self._held = None
        self._held_bytes = 0
        self._redelivery = None

    def recorded_of(self, outgoing: Outgoing) -> int:
        """Return how many messages of a batch were recorded before its delivery failed."""
        in_hand, covered = self._in_hand
        return covered if in_hand is outgoing else 0


def _alike(
    entries: list[tuple[int, InFlight]],
) -> list[tuple[tuple[int, SubscriptionState | None], list[tuple[int, InFlight]]]]:
    """Group neighbours by flags; retained and shared messages also by subscription."""
    groups: list[tuple[tuple[int, SubscriptionState | None], list[tuple[int, InFlight]]]] = []
    for pid, sent in entries:
        key = sent.flags, sent.subscription if _is_alone(sent) else None
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        groups[-1][1].append((pid, sent))
    return groups


def _is_alone(sent: InFlight) -> bool:
    """Return whether a delivery belongs to one subscription, whatever others match.

    That is so for retained messages, and those of a shared subscription.
    """
    return bool(sent.flags & RETAIN_FLAG) or sent.subscription.filter.startswith(SHARE)
