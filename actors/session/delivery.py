"""Deliveries to a client at QoS 0, 1 and 2, and the session's queue.

Each session actor has one :class:`Delivery`. While messages are read from the log, the session
defers everything but deliveries.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

from actors.node.backpressure import BACKLOG, Backlog
from actors.routing.option_semantics import is_retain_as_published
from actors.routing.subscriber import Subscriber, is_shared
from actors.session.core import SessionCore
from actors.session.decisions import acknowledgements, queueing
from actors.session.delivery_encoder import DeliveryEncoder
from actors.session.interfaces import AttachedReplay
from actors.session.node_context import NodeContext
from actors.session.redelivery import Redelivery
from actors.session.session_messages import Batch, ClientConnection, ContinueSending, Outgoing
from actors.session.session_output import QueueExpiry, SessionOutput
from eventstore.format.event_parsing import entries
from eventstore.format.events import Delivered, Expired, MessageDropped, Queued
from eventstore.format.positions import Position, format_position, to_runs
from eventstore.log.message_store import Message
from eventstore.log.pending_record import LARGE_PAYLOAD

_DRAIN_AT_ONCE = 1024
"""Messages taken from the queue in one step."""


class Delivery(SessionOutput):
    """Delivers messages to the client of one session."""

    __slots__ = (
        "_backlog",
        "_current",
        "_dropped",
        "_expiry",
        "_redelivery",
        "_sending_queued",
        "replays",
        "sent_from_queue",
    )

    def __init__(self, node: NodeContext, session: SessionCore) -> None:
        super().__init__(node, session)
        self._redelivery: Redelivery | None = None
        """Sends deliveries again; None: there was nothing to acknowledge yet."""
        self._dropped = False
        """Whether queued messages were dropped instead of sent."""
        self._sending_queued = False
        """Whether sending continues in another turn."""
        self._expiry: QueueExpiry | None = None
        """Finds expired messages; None: no queue was half full yet."""
        self._backlog: Backlog | None = None
        """Publishers that wait until fewer messages are queued for this client; None: there are
        none."""
        self.sent_from_queue = 0
        """Number of messages sent from the queue."""
        self.replays: list[AttachedReplay] | None = None
        """The replays of the connected client; None: it has none."""
        self._current: tuple[Outgoing | None, int] = (None, 0)

    @property
    def resuming(self) -> bool:
        """True while messages remain to be redelivered after a reconnect."""
        return self._redelivery is not None and bool(self._redelivery.pending)

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
            batch = self._without_too_large(message)
            if not len(batch):
                return
        if not qos:
            self._send_qos0(subscriber, batch)
            return
        if not is_shared(subscriber.filter):  # such a one chose the client because it has room
            self.make_room()
        ready = connection is not None and self.accepts_output(connection) and not self.resuming
        delivery = queueing.deliver(
            self._session.state,
            subscriber.filter,
            qos,
            batch.positions,
            batch.payloads,
            batch.size,
            self._node.delivery_limits,
            retain=batch.retain,
            ready=ready,
            rap=self._is_as_published(batch, subscriber),
            expires=batch.expires,
        )
        sent = len(delivery.packet_ids)
        covered = queued = 0
        for event in delivery.events:
            at = self._session.emit(event)
            covered += entries(event)
            self._current = (message, covered)
            if type(event) is MessageDropped:
                self._count_dropped(event, at)
            elif type(event) is Queued:
                queued = covered
        if sent and connection is not None:
            self._send(connection, subscriber, batch, qos, delivery.packet_ids)
            self.expect_acks()
        if connection is not None and sent < queued:
            self._hold(batch, sent, queued)
            self.slow_publishers(batch, connection)
        if connection is None:
            self._session.last_active = self._node.clock.monotonic()

    def _expire_unsent(self, message: Outgoing) -> None:
        """Record that messages had expired before they could be sent [MQTT-3.3.2-5]."""
        subscriber, batch, qos = message
        name, state = self._session.name, self._session.state
        if not qos:
            self._node.count_dropped("expired", len(batch), client=name)
            return
        topic_filter = queueing.goes_behind(state, subscriber.filter) or subscriber.filter
        for numbers in acknowledgements.in_parts(range(len(batch))):
            part = batch.select(numbers)
            refs, payloads, expires = part.positions, part.payloads, part.expires
            for event in queueing.queued(
                name, topic_filter, qos, refs, payloads, retain=False, expires=expires
            ):
                self._session.emit(event)
            self._current = (message, numbers[-1] + 1)
            self._emit_expired(topic_filter, refs, part.size)

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
        rap = self._is_as_published(batch, subscriber)
        if batch.size >= LARGE_PAYLOAD * len(batch):
            pieces = (
                [*batch.prepared(qos, as_published=rap).pieces(packet_ids, 0, count)]
                if encoder is None
                else encoder.pieces(batch, subscriber, qos, packet_ids, count)
            )
            size = journal.send_pieces_when_durable(connection, pieces)
        else:
            data = (
                batch.prepared(qos, as_published=rap).render(packet_ids, 0, count)
                if encoder is None
                else encoder.render(batch, subscriber, qos, packet_ids, count)
            )
            journal.send_when_durable(connection, data)
            size = len(data)
        self._node.counters.count_sent(connection, qos, count, size)

    def _is_as_published(self, batch: Batch, subscriber: Subscriber) -> bool:
        """Return whether published messages are sent with RETAIN."""
        if not batch.published_retain or not is_retain_as_published(subscriber.options):
            return False
        return self.encoder is not None or self._session.state.bridge

    def slow_publishers(self, batch: Batch, connection: ClientConnection | None = None) -> None:
        """Pause publishers, but not the client, until some of many queued messages are taken."""
        if self._session.state.queued <= BACKLOG:
            return
        if self._backlog is None:
            self._backlog = Backlog(
                self._node.timers,
                self._node.clock,
                lambda: (self._session.state.queued, self.sent_from_queue),
            )
        for publisher, count in batch.by_publisher():
            if publisher is not connection:
                self._backlog.hold(publisher, count)

    @property
    def packet_limit(self) -> int:
        """Maximum packet size of the client in bytes; 0: unlimited."""
        return self.encoder.limit if self.encoder is not None else 0

    def too_large(self, outgoing: Outgoing) -> list[int]:
        """Return the numbers of a batch's messages that exceed the client's maximum packet size."""
        subscriber, batch, qos = outgoing
        encoder = self.encoder
        return encoder.too_large(batch, subscriber, qos) if encoder is not None else []

    def takes_plain(self, publisher: ClientConnection) -> bool:
        """Return whether the client gets messages in the form in which they were published.

        It uses the protocol level of the publisher, no subscription identifiers, and no limit on
        the size of packets.
        """
        encoder = self.encoder
        if publisher.properties is None:
            return encoder is None
        return encoder is not None and encoder.plain

    @property
    def blocked_by(self) -> str:
        """The reason why nothing new can be sent to the client at QoS 1 and 2; empty: none.

        ``offline``, ``resuming`` (older messages are redelivered first), ``reader`` (the client
        does not read), ``loading`` (messages are read from the log) or ``log`` (the log does not
        keep up).
        """
        connection = self._session.connection
        if connection is None:
            return "offline"
        if self.resuming:
            return "resuming"
        if not connection.writable:
            return "reader"
        if self.loading:
            return "loading"
        return "log" if self.is_log_late(connection) else ""

    def subscriptions_changed(self, filters: Iterable[str]) -> None:
        """Update the subscriptions with these filters in the encoder of an MQTT 5 client."""
        if self.encoder is not None:
            self.encoder.subscriptions_changed(filters)

    def complete_encoder(self, most: int) -> bool:
        """Index at most ``most`` filters in the encoder; return whether some are still missing."""
        return self.encoder is not None and self.encoder.complete(most)

    @property
    def redelivery(self) -> Redelivery:
        """What sends the client's deliveries again."""
        if self._redelivery is None:
            self._redelivery = Redelivery(self._node, self._session)
            self._redelivery.attach(v5=self.encoder is not None)
        return self._redelivery

    @property
    def resumed(self) -> bool:
        """Whether deliveries were unfinished when the client connected."""
        return self._redelivery is not None and self._redelivery.resumed

    def expect_acks(self) -> None:
        """Check after ``ack_wait`` for missing acknowledgements."""
        if self.encoder is None and self._node.options.ack_wait:
            self.redelivery.expect_acks()

    def may_send(self, connection: ClientConnection) -> bool:
        """Return whether a new message may be sent to the client."""
        return not self.resuming and self.accepts_output(connection)

    def _hold(self, batch: Batch, start: int, stop: int) -> None:
        """Keep messages queued for a connected client in memory, as they will be sent soon."""
        buffer, limit = self._own_buffer(), self._node.delivery_limits.batch_bytes
        if buffer.has_room(batch.size, limit):
            messages = map(batch.stored().message, range(start, stop))
            buffer.hold(dict(zip(batch.positions[start:stop], messages, strict=True)))

    def _without_too_large(self, message: Outgoing) -> Batch:
        """Return a batch without messages too large for the client; record those as dropped."""
        subscriber, batch, qos = message
        large = self.too_large(message)
        if not large:
            return batch
        name = self._session.name
        reason, topic_filter = "packet_too_large", subscriber.filter
        if qos:
            self._node.drop(name, reason, [batch.positions[at] for at in large], topic_filter)
        else:
            topics = [batch.topics[at] for at in large]
            self._node.drop_unrecorded(name, reason, topics, topic_filter)
        large_numbers = set(large)
        return batch.select([at for at in range(len(batch)) if at not in large_numbers])

    def _send_qos0(self, subscriber: Subscriber, batch: Batch) -> None:
        connection = self._session.connection
        if connection is None:
            return
        node = self._node
        if connection.unsent < node.options.max_outbound_bytes:
            gated = batch.gated or bool(batch.qos and not batch.retain)
            if self.encoder is None:
                data = batch.at_qos0(as_published=self._is_as_published(batch, subscriber))
            else:
                data = self.encoder.render(batch, subscriber, 0, gated=gated)
            if gated:
                # The publication is being recorded. Until it is, a crash may undo it, and its
                # publisher may send it again: no client may have seen it by then [MQTT-4.3.3-2].
                node.journal.send_when_durable(connection, data)
            else:
                node.journal.send_unlogged(connection, data)
            node.counters.count_sent(connection, 0, len(batch), len(data))
            if not connection.writable and batch.publisher is not None and not batch.qos:
                connection.throttle_publisher(batch.publisher, len(batch))
            return
        node.drop_unrecorded(self._session.name, "slow_reader", batch.topics)

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
        if self.replays is not None:
            for replay in self.replays:
                replay.wake()
        self._send_own_queue()

    def _send_own_queue(self) -> None:
        connection, state = self._session.connection, self._session.state
        if self._backlog is not None and state.queued <= BACKLOG // 2:
            self._backlog.release()
        if self.resuming:
            self.redelivery.send_more(self)
        if connection is None or self.resuming or not state.queued:
            return
        if not self.accepts_output(connection):
            return
        limits = self._node.delivery_limits
        typical = state.queued_bytes // state.queued
        most = self._session.at_once(_DRAIN_AT_ONCE)
        most = max(1, min(most, limits.batch_bytes // (typical + 1)))
        runs = queueing.next_waiting(state, limits.window, most)
        if not runs:
            return
        refs = [ref for run in runs for ref in run.refs]
        messages = self._own_buffer().find_first(refs)
        if not messages:
            self.load(self._own_buffer().to_load(refs), self.send_queued)
            return
        budget = limits.batch_bytes
        for run in runs:
            # A message may be queued twice: retained, and requested twice. Messages behind a gap
            # wait.
            chosen = [messages[ref] for ref in takewhile(messages.__contains__, run.refs)]
            if not chosen:
                break
            count = queueing.within([message.payload for message in chosen], budget)
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
            self.send_queued_later()
        elif len(messages) < len(refs):
            self.send_queued()

    def send_queued_later(self) -> None:
        """Continue sending in another turn, after other work."""
        if not self._sending_queued:
            self._sending_queued = True
            self._session.kernel.later(self._session, ContinueSending())

    def continue_sending(self) -> None:
        """Send more queued messages."""
        self._sending_queued = False
        self.send_queued()

    def _send_permitted(
        self, connection: ClientConnection, run: queueing.WaitingRun, messages: list[Message]
    ) -> int:
        """Send the first messages of a run; drop those that the client may not or cannot receive.

        The messages were queued while the client was offline or had other permissions. Returns the
        payload bytes sent.
        """
        access, encoder = connection.access, self.encoder
        limited = encoder is not None and encoder.limit
        times = {message.expires for message in messages}
        times.discard(0)
        if access is None and not limited and not times and self._node.sealing is None:
            return self._send_waiting(connection, run, messages)
        pairs = zip(run.refs, messages, strict=False)
        erased = {id(message) for ref, message in pairs if self._node.is_erased(ref, message)}
        now_ms, flags = self._node.clock.steady_ms(), (run.qos, run.retain)
        of = run.subscription if run.retain else None
        passed = self._node.expired_until
        if (
            access is None
            and not limited
            and not erased
            and min(times, default=passed + 1) > passed
        ):
            return self._send_waiting(connection, run, messages)

        def why_not(message: Message) -> str:
            if id(message) in erased:
                return "erased"
            if 0 < message.expires <= passed:
                return "expired"
            if access is not None and not access.read[message.topic]:
                return "not_permitted"
            if encoder is not None and encoder.is_too_large(message, flags, now_ms, of):
                return "packet_too_large"
            return ""

        size = at = 0
        for reason, group in groupby(messages, why_not):
            stretch = [*group]
            part = run._replace(refs=run.refs[at : at + len(stretch)])
            at += len(stretch)
            if not reason:
                size += self._send_waiting(connection, part, stretch)
                continue
            queued = sum(len(message.payload) for message in stretch)
            self._dropped = True
            self._drop_waiting(reason, part, queued)
            self.release(part.refs)
        return size

    def make_room(self) -> None:
        """Drop expired messages from queues that are at least half full."""
        state, limits = self._session.state, self._node.delivery_limits
        filling = (
            2 * state.queued >= limits.queued_messages
            or 2 * state.queued_bytes >= limits.queued_bytes
        )
        if not filling or self.loading:
            return
        if self._expiry is None:
            self._expiry = QueueExpiry()
        now = self._node.expired_until
        missing = self._expiry.search(state, now, self._own_buffer(), self._record_expired)
        if missing:
            self.load(missing, self.make_room)

    def _record_expired(self, topic_filter: str, refs: list[Position], size: int) -> None:
        """Record that messages in a queue have expired."""
        self._emit_expired(topic_filter, refs, size)
        self.release(refs)

    def _emit_expired(self, topic_filter: str, refs: Sequence[Position], size: int) -> None:
        name = self._session.name
        at = self._session.emit(Expired(name, topic_filter, to_runs(refs), size))
        where = format_position(at)
        self._node.count_dropped("expired", len(refs), client=name, position=where)

    def _drop_waiting(self, reason: str, run: queueing.WaitingRun, queued: int) -> None:
        """Record that messages leave the head of a queue unsent."""
        name, topic_filter = self._session.name, run.subscription.filter
        if reason == "expired":
            self._record_expired(topic_filter, run.refs, queued)
        else:
            self._node.drop(name, reason, run.refs, topic_filter, queued)

    def _send_waiting(
        self, connection: ClientConnection, run: queueing.WaitingRun, messages: list[Message]
    ) -> int:
        """Send the first messages of a run; return their payload bytes."""
        encoder = self.encoder
        bridge = self._session.state.bridge and is_retain_as_published(run.subscription.options)
        as_published = bridge or encoder is not None
        if run.retain or not as_published or not any(message.retain for message in messages):
            return self._send_run(connection, run, messages, rap=False)
        size = at = 0
        for rap, group in groupby(
            messages,
            lambda message: (
                message.retain and (encoder is None or encoder.is_as_published(message.topic))
            ),
        ):
            stretch = [*group]
            part = run._replace(refs=run.refs[at : at + len(stretch)])
            at += len(stretch)
            size += self._send_run(connection, part, stretch, rap=rap)
        return size

    def _send_run(
        self,
        connection: ClientConnection,
        run: queueing.WaitingRun,
        messages: list[Message],
        *,
        rap: bool,
    ) -> int:
        """Send the first messages of a run; ``rap``: with RETAIN, as they were published."""
        count = len(messages)
        refs = run.refs[:count]
        packet_ids = acknowledgements.take_packet_ids(self._session.state, count)
        size = sum(len(message.payload) for message in messages)
        event = Delivered(
            self._session.name,
            run.subscription.filter,
            run.qos,
            pids=to_runs(packet_ids),
            refs=to_runs(refs),
            retain=run.retain,
            queued=size,
            rap=rap,
        )
        self._session.emit(event)
        # Retained messages are sent because of one subscription [MQTT-3.3.1-9].
        of = run.subscription if run.retain else None
        data = self.encode(messages, (run.qos, run.retain or rap), packet_ids, of=of)
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.count_sent(connection, run.qos, count, len(data))
        self.sent_from_queue += count
        self.release(refs)
        self.expect_acks()
        return size

    # The connected client.

    def attach(self, encoder: DeliveryEncoder | None) -> None:
        """Begin deliveries to a client that connected; ``encoder`` is that of an MQTT 5 client."""
        self.encoder = encoder
        if self._redelivery is not None:
            self._redelivery.attach(v5=encoder is not None)
        if encoder is not None:
            encoder.attach(self._session.state, self._session.connection)

    def resume(self) -> None:
        """Redeliver incomplete deliveries, then send queued messages [MQTT-4.4.0-1]."""
        if self._buffer is not None:
            self._buffer.restart_reading()
        state = self._session.state
        if state.inflight or state.releasing or self._redelivery is not None:
            self.redelivery.begin()
        self.send_queued()

    def check_acks(self) -> None:
        """Redeliver messages that were not acknowledged within ``ack_wait``."""
        self.redelivery.check_acks(self)

    def release_publishers(self) -> None:
        """Resume the publishers that wait for this client."""
        if self._backlog is not None:
            self._backlog.release()
            self._backlog = None

    def forget(self) -> None:
        """Drop all messages from memory and resume waiting publishers: the client has left."""
        self.release_publishers()
        self._buffer = None
        if self._redelivery is not None:
            self._redelivery.pending = None

    def recorded_of(self, outgoing: Outgoing) -> int:
        """Return how many messages of a batch were recorded before its delivery failed."""
        current, covered = self._current
        return covered if current is outgoing else 0
