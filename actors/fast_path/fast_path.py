"""Handles the input of all sockets in one iteration of the event loop as columns, in one pass.

Devices send one packet at a time. Handled alone, each packet would pass through the mailboxes of
connection, session and subscription, with an event for each step. Here all packets of a turn share
that cost: they are read into columns, looked up, recorded as one event per kind for all sessions
(``eventstore.format.turn_events``), and written out for each connection.

The pass handles the common case: acknowledgements and PUBLISH packets of clients without special
state, for receivers with an open window. Everything else is passed to its actor in the same
turn, from that byte or that receiver on: input of a client that is new or publishes too fast,
topics that were not looked up yet or are denied, full windows, queues, traces. A burst of one
client on one topic is passed on as well: its session handles it as a batch.

All decisions precede all changes, and failed input is passed to its actor, where the same failure
ends one connection or one session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import structlog

from actors.connection.receive_window import ReceiveWindow
from actors.fast_path.fast_delivery import (
    DeliveriesLeft,
    FanOut,
    FastDelivery,
    FastDeliveryQos0,
    TurnDelivery,
    do_deliveries,
    fail_turn,
)
from actors.fast_path.read_columns import (
    AckColumns,
    MessageColumns,
    distinct,
    notify_observers,
    notify_observers_qos0,
)
from actors.node.read_pause import ReadPause
from actors.routing.option_semantics import is_retain_as_published
from actors.routing.routes import Route
from actors.routing.subscriber import is_shared
from actors.session.decisions.publish_admission import admits
from actors.session.interfaces import MessageExchange
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import Writable
from eventstore.format.positions import Position, to_runs
from eventstore.format.stored_properties import block_columns, expiries
from eventstore.format.turn_events import TurnAcked, TurnPublished, TurnReleased
from eventstore.log.message_store import Message, StoredMessages
from projections.state.waiting_queue import QOS_MASK
from protocol.mqtt.encoder import PID_BYTES
from protocol.mqtt.message_properties import (
    ReceivedProperties,
    expiry_of,
    known_properties,
    read_publish_properties,
)
from protocol.mqtt.packets import PacketType, Publishes
from protocol.mqtt.protocol_error import ProtocolError

if TYPE_CHECKING:
    from actors.connection.connection import Connection


_log = structlog.get_logger("foldmq")

T = TypeVar("T")

_ENOUGH = 256
"""Approximate maximum packets of one pass; each delivery and each 256 bytes count as one more."""
_LONG = 0.004
"""Seconds of a turn after which no further pass begins."""
_FEW_TARGETS = 16
"""Maximum receivers of a retained message."""
_SYSTEM = ord("$")
_DELIVERED = 256
"""Maximum deliveries of one pass; ``FanOut`` makes the others in the same turn."""
_NAME = 256
"""Maximum characters of a client identifier: an event contains those of a whole turn."""
_TOPICS, _TOPICS_QOS0 = {4: 1, 16: 5, 64: 21}, {4: 2, 16: 12, 64: 48}
"""Number of packets of a read examined -> maximum distinct topics of a bulk read; the second table
is for reads that begin with QoS 0, for which a batch is cheaper."""
_FEW, _LOOKED_AT = min(_TOPICS), max(_TOPICS)
_QOS0, _QOS1, _QOS2 = 0x18, 0x19, 0x1A
"""First byte, shifted right by one bit, of a PUBLISH that is not sent again."""
_RETAINED_QOS1 = _QOS1 << 1 | 1
_UNRETAINED = frozenset({_QOS0 << 1, _QOS1 << 1, _QOS2 << 1})
_PUBLISH = _UNRETAINED | {_RETAINED_QOS1}
_PUBLISH_2 = _QOS2 << 1
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_ACKED: Final[Mapping[int, Literal["Acked", "Received", "Completed"]]] = {
    _PUBACK: "Acked",
    _PUBREC: "Received",
    _PUBCOMP: "Completed",
}


class FastPath:
    """Decides on input of clients; one for each broker."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self.fan_out = FanOut(node)
        """Makes the deliveries that are too many for a pass."""
        node.kernel.spawn(self.fan_out, node.root)
        self.delivered_at_once = _DELIVERED
        """Maximum deliveries of one pass."""
        self._unfinished: list[TurnDelivery] = []
        self._begin()

    def _begin(self) -> None:
        self._published = MessageColumns()
        self._inbound = MessageColumns()
        self._released = MessageColumns()
        self._passing = MessageColumns()
        self._acks = {kind: AckColumns() for kind in _ACKED}
        self._windows: list[tuple[ReceiveWindow, int, list[int], list[int]]] = []
        """For each receive window the number of new QoS 1 messages, and the packet identifiers of
        new and of released QoS 2 messages."""
        self._windowed: dict[ReceiveWindow, int] = {}
        """Bytes read from clients with a receive window."""
        self._seen: set[tuple[Session, int, int]] = set()
        """Packet identifiers read in this turn, by session and first byte."""
        self._size = 0
        """Size of the pass: packets, their deliveries, and their bytes in units of 256."""

    def handle(self, reads: Sequence[tuple[Connection, bytes]]) -> int:
        """Handle the reads of connections in this order; return how many were handled.

        The others are left for another turn. Called by the kernel.
        """
        node = self._node
        kernel = node.kernel
        until, count = kernel.clock() + _LONG, 0
        unread: dict[Connection, list[bytes]] = {}
        if node.journal.observer is not None or node.draining:
            count = len(reads)
            for connection, data in reads:
                unread.setdefault(connection, []).append(data)
        while count < len(reads) and (not count or kernel.clock() < until):
            count = self._handle_some(reads, count, unread)
            if self._unfinished:
                break
        if self._unfinished:
            for connection in unread:
                connection.on_read_deferred()
            kernel.tell(self.fan_out, DeliveriesLeft(self._unfinished, unread))
            self._unfinished = []
        else:
            self.fan_out.hand_over(unread)
        if node.journal.congested:
            for connection, _ in reads[:count]:
                connection.pause(ReadPause.LOG)
                node.paused[connection] = None
        return count

    def _handle_some(
        self,
        reads: Sequence[tuple[Connection, bytes]],
        begin: int,
        unread: dict[Connection, list[bytes]],
    ) -> int:
        """Handle reads from ``begin`` on; return the number handled, including all before them.

        Input to be passed to the actors of connections is added to ``unread``.
        """
        end = begin
        partial_reads: list[tuple[Connection, bytes]] = []
        blocked = set(unread)
        try:
            while end < len(reads) and self._size < _ENOUGH:
                connection, data = reads[end]
                end += 1
                session = connection.session
                at = 0
                if (
                    session is not None
                    and connection not in blocked
                    and connection.plain
                    and session.free
                    and len(session.name) <= _NAME
                    and not is_bulk(data)
                ):
                    at = self._read(connection, session, data)
                if at < len(data):
                    blocked.add(connection)
                    partial_reads.append((connection, data[at:] if at else data))
        except Exception as error:  # noqa: BLE001 - the actors do it, and the one that fails ends
            _log.error("turn not read in columns", exc_info=error)
            self._begin()
            partial_reads = list(reads[begin:end])
        for connection, behind in partial_reads:
            unread.setdefault(connection, []).append(behind)
        if self._size:
            try:
                self._carry_out()
            except Exception as error:  # noqa: BLE001 - what is half done must not go on
                fail_turn(self._node, error)
            self._begin()
        return end

    def _read(self, connection: Connection, session: Session, data: bytes) -> int:
        """Read packets into the columns; return the offset of the first unhandled one."""
        window = connection.receive_window
        if window is not None:
            size = self._windowed.get(window, 0) + len(data)
            if not window.always_fits(size):
                return 0
            self._windowed[window] = size
        columns = self._published.pids, self._inbound.pids, self._released.pids
        before = [*map(len, columns)] if window is not None else ()
        published = self._message_count() if connection.has_rate else 0
        at, end, count = 0, len(data), 0
        while at < end - 1 and self._size < _ENOUGH:
            first = data[at]
            if first in _ACKED:
                stop = self._read_ack(connection, session, data, at)
            elif first in _PUBLISH:
                stop = self._read_publish(connection, session, data, at)
            elif first == _PUBREL:
                stop = self._read_release(connection, session, data, at)
            else:
                break
            if not stop:
                break
            count += 1
            at = stop
        if count:
            self._size += count
            connection.took(at, count)
            session.handled += 1
            if connection.has_rate:
                connection.count_published(self._message_count() - published, at)
        if window is not None:
            at_qos1, inbound, released = (
                pids[begin:] for pids, begin in zip(columns, before, strict=True)
            )
            self._windows.append((window, len(at_qos1), inbound, released))
        return at

    def _message_count(self) -> int:
        """Return the number of PUBLISH packets read in this pass."""
        return len(self._published.pids) + len(self._inbound.pids) + len(self._passing.pids)

    def _read_ack(self, connection: Connection, session: Session, data: bytes, at: int) -> int:
        """Read a PUBACK, PUBREC or PUBCOMP; return its end, 0 if the actor must handle it."""
        first, pid = data[at], int.from_bytes(data[at + 2 : at + 4], "big")
        stop = at + 4
        if len(data) < stop or not pid:
            return 0
        if data[at + 1] != 2:
            # In MQTT 5 a reason code of 0 and no properties may follow.
            stop = at + 2 + data[at + 1]
            if connection.properties is None or stop - at > 6 or data[at + 4 : stop].strip(b"\0"):
                return 0
            if len(data) < stop or stop - at < 4:
                return 0
        state = session.state
        sent = (state.releasing if first == _PUBCOMP else state.inflight).get(pid)
        acks = self._acks[first]
        key = session, first, pid
        if sent is not None and sent[1] & QOS_MASK == (1 if first == _PUBACK else 2):
            if key in self._seen:
                return 0
            self._seen.add(key)
            acks.connections.append(connection)
            acks.sessions.append(session)
            acks.pids.append(pid)
        elif first == _PUBREC:
            return 0  # an unknown identifier is answered as well
        return stop

    def _read_publish(self, connection: Connection, session: Session, data: bytes, at: int) -> int:
        """Read a PUBLISH; return its end, 0 if the actor must handle it."""
        size, body = data[at + 1], at + 2
        if size > 127:
            more = data[body] if body < len(data) else 0
            if not 0 < more < 128:
                return 0
            size, body = size & 127 | more << 7, body + 1
        stop = body + size
        if stop > len(data) or stop - at > connection.max_packet or size < 2:
            return 0
        qos = data[at] >> 1
        name_end = body + 2 + (data[body] << 8 | data[body + 1])
        payload_at = name_end + 2 if qos & 3 else name_end
        v5 = connection.properties is not None
        if payload_at + v5 > stop:
            return 0
        raw = data[body + 2 : name_end]
        retain = data[at] == _RETAINED_QOS1
        route = self._route(raw, qos, retain=retain)
        if route is None:
            return 0
        pid = 0
        if qos != _QOS0:
            pid = data[name_end] << 8 | data[name_end + 1]
        block, is_text = b"", False
        if v5:
            # Properties precede the payload.
            properties = _read_properties(data, payload_at, stop)
            if properties is None:
                return 0
            payload_at += 1 + data[payload_at]
            block, is_text = properties.block, properties.is_text
        access, inbound, rules = connection.access, session.state.inbound, self._node.publish_rules
        if (qos != _QOS0 and not pid) or not admits(
            rules, access, inbound, raw, qos & 3, pid, is_text=is_text
        ):
            return 0
        if qos == _QOS0:
            messages = self._passing
            payload = data if not at and stop == len(data) else data[at:stop]
        elif qos == _QOS1:
            messages, payload = self._published, data[payload_at:stop]
        else:
            key = session, _PUBLISH_2, pid
            if key in self._seen:
                return 0
            self._seen.add(key)
            messages, payload = self._inbound, data[payload_at:stop]
        messages.add(connection, session, raw, payload, route, pid, block, retain=retain)
        connection.messages_in += 1
        counters = self._node.counters
        counters.received[qos & 3] += 1
        counters.publish_bytes_in += stop - at
        self._size += (size >> 8) + len(route.targets)
        return stop

    def _route(self, topic: bytes, qos: int, *, retain: bool) -> Route | None:
        """Return the route of a topic; None: the actor must find it, check it or handle it."""
        node = self._node
        route = node.router.routes.get(topic)
        if route is None or not (route.plain_qos0 if qos == _QOS0 else route.plain):
            return None
        if not retain:
            return route
        if node.exchange is not None or topic[0] == _SYSTEM or len(route.targets) > _FEW_TARGETS:
            return None
        for target in route.targets:
            if is_retain_as_published(target.options) or is_shared(target.session):
                return None
        return route

    def _read_release(self, connection: Connection, session: Session, data: bytes, at: int) -> int:
        """Read a PUBREL; return its end, 0 if the actor must handle it."""
        pid = int.from_bytes(data[at + 2 : at + 4], "big")
        key = session, _PUBREL, pid
        if len(data) - at < 4 or data[at + 1] != 2 or key in self._seen:
            return 0
        node = self._node
        ref = session.state.inbound.get(pid)
        message = node.messages.get(ref) if ref is not None else None
        if ref is None or message is None or node.state.retained.known(session.name, ref):
            return 0
        if node.sealing is not None and node.sealing.is_erased(ref, message):
            return 0
        route = node.router.routes.get(message.topic)
        if route is None or not route.plain:
            return 0
        if message.expires and self._counts_down(message):
            return 0
        self._seen.add(key)
        released = self._released
        released.add(connection, session, message.topic, message.payload, route, pid, message.block)
        released.refs.append(ref)
        if message.expires or released.expires:
            missing = len(released.refs) - 1 - len(released.expires)
            released.expires = [*released.expires, *[0] * missing, message.expires]
        self._size += len(route.targets)
        return at + 4

    def _counts_down(self, message: Message) -> bool:
        """Return whether a message has less of its expiry left than it came with."""
        remaining_seconds = message.expires - self._node.clock.steady_ms() // 1000
        return remaining_seconds < (expiry_of(message.block) or 0)

    # Effects.

    def _carry_out(self) -> None:
        """Record the packets and apply their effects: all acknowledgements first."""
        for window, at_qos1, inbound, released in self._windows:
            window.add_counts(at_qos1, inbound)
            window.acknowledge(self._node.journal, PacketType.PUBCOMP, released)
            if at_qos1:
                window.acknowledge(self._node.journal, PacketType.PUBACK, range(at_qos1))
        for first, acks in self._acks.items():
            if acks.pids:
                self._complete(first, acks)
        if self._published.pids:
            self._record(self._published, 1)
        if self._inbound.pids:
            self._record(self._inbound, 2)
        if self._released.pids:
            self._release(self._released)
        deliveries: list[TurnDelivery] = []
        if self._published.pids:
            deliveries.append(FastDelivery(self._node, self._published, 1))
        if self._released.pids:
            deliveries.append(FastDelivery(self._node, self._released, 2))
        if self._passing.routes:
            if self._node.observers or self._node.bridge is not None:
                notify_observers_qos0(self._node, self._passing)
            if self._node.exchange is not None:
                self._send_to_others(self._node.exchange, self._passing)
            deliveries.append(FastDeliveryQos0(self._node, self._passing))
        self._unfinished = do_deliveries(deliveries, self.delivered_at_once)

    def _complete(self, first: int, acks: AckColumns) -> None:
        """Record acknowledgements of one kind; answer PUBRECs, send queued messages."""
        node = self._node
        sessions, by = distinct(acks.sessions)
        names = [session.name for session in sessions]
        node.emit(TurnAcked(_ACKED[first], names, by, acks.pids))
        if first == _PUBREC:
            self._answer(acks.connections, b"\x62\x02", acks.pids)
        for connection, session in zip(acks.connections, acks.sessions, strict=True):
            connection.last_ack = connection.last_read
            if session.awaits_acks and not session.stopped:
                node.kernel.tell(session, Writable(connection))

    def _answer(self, connections: Sequence[Connection], head: bytes, pids: Sequence[int]) -> None:
        journal = self._node.journal
        for connection, pid in zip(connections, pids, strict=True):
            journal.send_when_durable(connection, head + PID_BYTES[pid])
        self._node.counters.packets_out += len(pids)

    def _record(self, messages: MessageColumns, qos: int) -> None:
        """Record publications, which assigns their positions, and acknowledge them."""
        if messages.retained:
            self._record_parts(messages, qos)
        else:
            self._record_unretained(messages, qos)
        self._answer(messages.publishers, b"\x40\x02" if qos == 1 else b"\x50\x02", messages.pids)

    def _record_parts(self, messages: MessageColumns, qos: int) -> None:
        """Record publications some of which are retained."""
        expires: list[int] = []
        for part, retain in messages.parts():
            if retain:
                self._record_retained(part, qos)
            else:
                self._record_unretained(part, qos)
            messages.refs += part.refs
            expires += part.expires or [0] * len(part.refs)
        if any(expires):
            messages.expires = expires

    def _record_retained(self, messages: MessageColumns, qos: int) -> None:
        """Record retained publications of one session."""
        packet = Publishes(qos, retain=True)
        packet.topics, packet.packet_ids = messages.topics, messages.pids
        packet.payloads.extend(messages.payloads)
        packet.blocks = messages.blocks
        stored = messages.sessions[0].publisher.record(packet)
        messages.expires = stored.expires
        messages.refs = list(range(stored.first, stored.first + len(messages.pids)))
        self._notify(messages, qos, stored.first, stored)

    def _record_unretained(self, messages: MessageColumns, qos: int) -> None:
        """Record publications of several sessions that are not retained."""
        node, payloads = self._node, messages.payloads
        sessions, by = distinct(messages.sessions)
        names, which = distinct(messages.topics)
        sizes = list(map(len, payloads))
        count, size = len(sizes), sum(sizes)
        event = TurnPublished(
            [session.name for session in sessions],
            by,
            qos,
            [raw.decode() for raw in names],
            which,
            messages.pids,
            sizes[0] if sizes.count(sizes[0]) == count else sizes,
            0,
            count,
        )
        if any(messages.blocks):
            distinct_blocks, event.blocks, event.block_of = block_columns(messages.blocks)
            space = size + sum(event.blocks)
            first = node.emit(event, [*distinct_blocks, *payloads], space)
            messages.expires = expiries(messages.blocks, node.journal.steady_ms)
            stored = StoredMessages(
                first, messages.topics, payloads, size, messages.blocks, messages.expires
            )
        else:
            first = node.emit(event, payloads, size)
            stored = StoredMessages(first, messages.topics, payloads, size)
        stored = stored._replace(publishers=event.sessions, publisher_of=event.by)
        node.messages.add(stored)
        messages.refs = list(range(first, first + count))
        if qos == 1:
            self._notify(messages, 1, first, stored)

    def _release(self, messages: MessageColumns) -> None:
        """Record that QoS 2 messages take effect; answer with PUBCOMP."""
        sessions, by = distinct(messages.sessions)
        names = [session.name for session in sessions]
        node = self._node
        first = node.emit(TurnReleased(names, by, messages.pids, to_runs(messages.refs)))
        if node.observers or node.bridge is not None:
            size = sum(map(len, messages.payloads))
            stored = StoredMessages(messages.refs[0], messages.topics, messages.payloads, size)
            blocks = messages.blocks if any(messages.blocks) else ()
            self._notify(
                messages,
                *(2, first),
                stored._replace(
                    blocks=blocks, expires=messages.expires, publishers=names, publisher_of=by
                ),
            )
        self._answer(messages.publishers, b"\x70\x02", messages.pids)

    def _notify(
        self, messages: MessageColumns, qos: int, since: Position, stored: StoredMessages
    ) -> None:
        """Notify observers and the bridge of messages that take effect from a position on."""
        node = self._node
        if node.observers:
            notify_observers(node, messages, qos, since, retain=stored.retain)
        if node.bridge is not None:
            node.bridge.recorded(qos, stored, messages.refs, since)

    def _send_to_others(self, exchange: MessageExchange, messages: MessageColumns) -> None:
        """Send QoS 0 messages to the brokers of other logs."""
        payloads, blocks = [], []
        for publisher, packet, topic, block in zip(
            *(messages.publishers, messages.payloads, messages.topics, messages.blocks), strict=True
        ):
            single = Publishes(0)
            single.topics.append(topic)
            single.packets.append(packet)
            single.blocks = [block] if publisher.properties is not None else None
            payloads.append(single.payloads[0])
            blocks.append(block)
        exchange.pass_on(messages.topics, payloads, blocks)


def _read_properties(data: bytes, at: int, stop: int) -> ReceivedProperties | None:
    """Return the properties of a PUBLISH, whose length is at an offset.

    None: they are wrong, long or contain a topic alias; the actor must handle them.
    """
    end = at + 1 + data[at]
    if data[at] > 127 or end > stop:
        return None
    raw = data[at + 1 : end]
    properties = known_properties.get(raw)
    if properties is None:
        try:
            properties = read_publish_properties(raw)
        except ProtocolError:
            return None
    return None if properties.alias else properties


def is_bulk(data: bytes) -> bool:
    """Return whether a read has many packets on few topics, acknowledgements or retained messages.

    Its session handles such reads as batches, whose output is prepared once.
    """
    end = len(data)
    if end < 4 * _FEW or data[1] + 2 == end:
        return False
    at, topics = 0, set[bytes]()
    bounds = _TOPICS_QOS0 if data[0] == _QOS0 << 1 else _TOPICS
    for count in range(1, _LOOKED_AT + 1):
        if at + 4 > end:
            return False
        first, size, body = data[at], data[at + 1], at + 2
        if size > 127:
            size, body = size & 127 | data[body] << 7, body + 1
        if first in _UNRETAINED:
            topics.add(data[body : body + 2 + int.from_bytes(data[body : body + 2], "big")])
        at = body + size
        most = bounds.get(count)
        if most is not None and len(topics) <= most:
            return at <= end
    return False
