"""Deliveries of a turn to receivers that need no queueing, permissions check or tracing.

A message may have tens of thousands of receivers, so the deliveries are made in steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import structlog

from actors.fast_path.read_columns import distinct
from actors.kernel.actor import LoopActor
from actors.routing.subscriber import is_shared
from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.session_messages import Batch, Outgoing
from actors.session.subscription_actor import enqueue
from eventstore.format.positions import to_runs
from eventstore.format.turn_events import TurnDelivered
from eventstore.log.pending_record import LARGE_PAYLOAD
from protocol.errors import FoldmqError
from protocol.mqtt.encoder import PID_BYTES, publish_head
from protocol.mqtt.property_codec import with_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.fast_path.read_columns import MessageColumns
    from actors.routing.subscriber import Subscriber
    from actors.session.core import SessionCore
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import ClientConnection
    from actors.session.subscription_actor import Subscription
    from projections.state.session import SessionState, SubscriptionState

    _Row: TypeAlias = tuple[Subscriber, SessionCore, ClientConnection, int, int]
    from collections.abc import Mapping

    from actors.connection.connection import Connection


_ROWS_OF_EVENT = 256
"""Maximum deliveries of one event."""
_NAMES = 512
"""Maximum characters of client identifier and topic filter together: an event has those of all
its deliveries, and must fit into a record."""


class TurnDelivery:
    """The deliveries of messages of one QoS, made in steps."""

    __slots__ = ("_at", "_messages", "_node", "_target")

    def __init__(self, node: NodeContext, messages: MessageColumns) -> None:
        self._node = node
        self._messages = messages
        self._at = self._target = 0
        """The next delivery: the number of the message, and of its receiver."""

    def run(self, most: int) -> bool:
        """Make up to ``most`` deliveries; return whether all are done."""
        routes, publishers = self._messages.routes, self._messages.publishers
        deliveries = 0
        while self._at < len(routes) and deliveries < most:
            at, begin = self._at, self._target
            targets = routes[at].targets
            end = min(len(targets), begin + most - deliveries)
            self._deliver_to(at, targets if end - begin == len(targets) else targets[begin:end])
            publishers[at].caused += end - begin
            deliveries += end - begin
            self._target = end
            if end == len(targets):
                self._at, self._target = at + 1, 0
        self._node.router.deliveries += deliveries
        is_done = self._at >= len(routes)
        self._end_step(is_done=is_done)
        return is_done

    def _deliver_to(self, at: int, targets: Sequence[Subscriber]) -> None:
        """Deliver a message to some of its receivers."""
        raise NotImplementedError

    def _end_step(self, *, is_done: bool) -> None:
        """Record and send what was collected in this step."""
        raise NotImplementedError


class FastDelivery(TurnDelivery):
    """Sends messages of QoS 1 or 2 to their receivers.

    A message is sent at once to receivers that can take it, and passed to the sessions of the
    others. A shared subscription gets all of its messages in one batch, which it divides.
    """

    __slots__ = (
        "_batch",
        "_excluded",
        "_left",
        "_more",
        "_packet",
        "_pids",
        "_qos",
        "_rows",
        "_sent",
        "_shared",
    )

    def __init__(self, node: NodeContext, messages: MessageColumns, qos: int) -> None:
        super().__init__(node, messages)
        self._qos = qos
        self._rows: dict[int, list[_Row]] = {1: [], 2: []}
        """The collected deliveries, by their QoS."""
        self._pids: dict[SessionState, int] = {}
        """The last packet identifier assigned by each session in these rows."""
        self._more: dict[SubscriptionState, int] = {}
        """Number of deliveries of each subscription in these rows."""
        self._sent: dict[SessionState, int] = {}
        """Number of deliveries of each session with a Receive Maximum in these rows."""
        self._excluded: set[SessionCore] = set()
        """Sessions whose actors get messages: later messages must not overtake these."""
        self._left: list[tuple[Subscriber, int]] = []
        """Messages of this step for the actors of subscribers, by their number."""
        self._shared: dict[Subscriber, list[int]] = {}
        """Messages for shared subscriptions."""
        self._packet: tuple[int, bool, bytes] | None = None
        """The message encoded last at QoS 0: its number, whether for MQTT 5, and its packet."""
        self._batch: tuple[list[int], Batch] | None = None
        """The batch last passed to an actor: it is prepared once for all receivers."""

    def _deliver_to(self, at: int, targets: Sequence[Subscriber]) -> None:
        for target in targets:
            if not self._send(target, at):
                actor: Subscription | None = target.actor  # type: ignore[assignment]
                if actor is not None:
                    self._excluded.add(actor.session)
                elif is_shared(target.session):
                    self._shared.setdefault(target, []).append(at)
                    continue
                if actor is not None or target.qos:
                    self._left.append((target, at))

    def _end_step(self, *, is_done: bool) -> None:
        self._flush()
        if self._left:
            for target, numbers in self._runs():
                self._pass_on(target, numbers)
            self._left.clear()
        if is_done:
            for target, numbers in self._shared.items():
                self._pass_on(target, numbers)

    def _send(self, target: Subscriber, at: int) -> bool:
        """Send a message if its receiver is ready; return whether it was sent."""
        actor: Subscription | None = target.actor  # type: ignore[assignment]
        if actor is None or target.ended or not actor.free:
            return False
        session = actor.session
        connection, state = session.connection, session.state
        if (
            connection is None
            or session in self._excluded
            or state.waiting
            or not actor.delivery.may_send(connection)
        ):
            return False
        v5 = connection.properties is not None
        if v5 and not actor.delivery.takes_plain(connection):
            return False
        qos = target.qos if target.qos < self._qos else self._qos
        if not qos:
            if not connection.writable:
                return False
            # The publication is being recorded: see Delivery._send_qos0.
            data = self._at_qos0(at, v5=v5)
            self._node.journal.send_when_durable(connection, data)
            self._node.counters.count_sent(connection, 0, 1, len(data))
            actor.matched += 1
            return True
        if len(session.name) + len(target.filter) > _NAMES:
            return False
        subscription = state.subscriptions.get(target.filter)
        pid = self._pids.get(state, state.last_pid) % PACKET_IDS + 1
        if subscription is None or pid in state.inflight or pid in state.releasing:
            return False
        more = self._more.get(subscription, 0)
        if subscription.outstanding + more >= self._node.delivery_limits.window:
            return False
        if self._node.state.sessions.live.get(session.name) is not state:
            return False
        if state.receive_maximum < PACKET_IDS:
            sent = self._sent.get(state, 0)
            if len(state.inflight) + len(state.releasing) + sent >= state.receive_maximum:
                return False
            self._sent[state] = sent + 1
        self._pids[state] = pid
        self._more[subscription] = more + 1
        rows = self._rows[qos]
        rows.append((target, session, connection, pid, at))
        if len(rows) >= _ROWS_OF_EVENT:
            self._flush()
        return True

    def _at_qos0(self, at: int, *, v5: bool) -> bytes:
        """Return a message as a packet of QoS 0, the same object for all receivers in a row."""
        if self._packet is None or self._packet[:2] != (at, v5):
            messages = self._messages
            payload = messages.payloads[at]
            if v5:
                payload = with_length(messages.blocks[at]) + payload
            data = publish_head(0, messages.topics[at], len(payload)) + payload
            self._packet = at, v5, data
        return self._packet[2]

    def _runs(self) -> list[tuple[Subscriber, list[int]]]:
        """Return the messages for the actor of each subscriber, in order within each session.

        Messages that the session published itself are separate: No Local may apply to them.
        """
        runs: list[tuple[Subscriber, list[int]]] = []
        last_runs: dict[str, tuple[Subscriber, bool, list[int]]] = {}
        sessions = self._messages.sessions
        for target, at in self._left:
            own = sessions[at].name == target.session
            run = last_runs.get(target.session)
            if run is None or run[0] is not target or run[1] != own:
                run = last_runs[target.session] = target, own, []
                runs.append((target, run[2]))
            run[2].append(at)
        return runs

    def _flush(self) -> None:
        """Record and send the collected deliveries."""
        for qos, rows in self._rows.items():
            if rows:
                self._deliver(qos, rows)
                self._rows[qos] = []
        self._pids.clear()
        self._more.clear()
        self._sent.clear()

    def _deliver(self, qos: int, rows: Sequence[_Row]) -> None:
        node, messages = self._node, self._messages
        targets, by = distinct([row[0] for row in rows])
        node.emit(
            TurnDelivered(
                [target.session for target in targets],
                [target.filter for target in targets],
                by,
                qos,
                [row[3] for row in rows],
                to_runs([messages.refs[row[4]] for row in rows]),
            )
        )
        journal, topics, payloads = node.journal, messages.topics, messages.payloads
        size = 0
        for target, session, connection, pid, at in rows:
            payload = payloads[at]
            if len(payload) >= LARGE_PAYLOAD:
                size += self._send_large(connection, qos, at, pid)
            else:
                if connection.properties is not None:
                    payload = with_length(messages.blocks[at]) + payload
                data = publish_head(qos, topics[at], len(payload)) + PID_BYTES[pid] + payload
                journal.send_when_durable(connection, data)
                size += len(data)
            connection.messages_out += 1
            session.handled += 1
            actor: Subscription | None = target.actor  # type: ignore[assignment]
            if actor is not None:
                actor.matched += 1
                actor.handled += 1
                actor.delivery.expect_acks()
        counters = node.counters
        counters.sent[qos] += len(rows)
        counters.packets_out += len(rows)
        counters.publish_bytes_out += size

    def _send_large(self, connection: ClientConnection, qos: int, at: int, pid: int) -> int:
        """Send a message without copying its payload; return the bytes of its packet."""
        messages = self._messages
        payload = messages.payloads[at]
        block = b"" if connection.properties is None else with_length(messages.blocks[at])
        head = publish_head(qos, messages.topics[at], len(block) + len(payload))
        pieces = (head + PID_BYTES[pid] + block, payload)
        return self._node.journal.send_pieces_when_durable(connection, pieces)

    def _pass_on(self, target: Subscriber, numbers: list[int]) -> None:
        """Pass some messages to the receiving session, which decides on them."""
        node = self._node
        if self._batch is None or self._batch[0] != numbers:
            self._batch = numbers, self._batch_of(numbers)
        batch = self._batch[1]
        actor = target.actor
        if actor is not None and not actor.stopped:
            enqueue(actor, batch, target)
            return
        qos = min(self._qos, target.qos)
        if qos or actor is not None:
            node.kernel.tell(node.directory.session(target.session), Outgoing(target, batch, qos))

    def _batch_of(self, numbers: Sequence[int]) -> Batch:
        messages = self._messages
        payloads = [messages.payloads[at] for at in numbers]
        return Batch(
            self._qos,
            [messages.topics[at] for at in numbers],
            payloads,
            [messages.refs[at] for at in numbers],
            size=sum(map(len, payloads)),
            publisher=messages.publishers[numbers[-1]],
            blocks=[messages.blocks[at] for at in numbers],
            expires=[messages.expires[at] for at in numbers] if messages.expires else (),
            publishers=[messages.publishers[at] for at in numbers] if len(numbers) > 1 else (),
        )


class FastDeliveryQos0(TurnDelivery):
    """Sends messages of QoS 0, which are not recorded, as they came."""

    __slots__ = ("_excluded", "_shared")

    def __init__(self, node: NodeContext, messages: MessageColumns) -> None:
        super().__init__(node, messages)
        self._excluded: set[SessionCore] = set()
        """Sessions whose actors got messages: later messages must not overtake these, although the
        client may be ready for them by then."""
        self._shared: dict[tuple[Subscriber, bool], list[int]] = {}
        """Messages for shared subscriptions, from publishers with and without MQTT 5."""

    def _deliver_to(self, at: int, targets: Sequence[Subscriber]) -> None:
        node, messages = self._node, self._messages
        journal, counters = node.journal, node.counters
        publisher, packet = messages.publishers[at], messages.payloads[at]
        v5 = publisher.properties is not None
        batch: Batch | None = None
        for target in targets:
            actor: Subscription | None = target.actor  # type: ignore[assignment]
            if actor is None:
                if is_shared(target.session):
                    self._shared.setdefault((target, v5), []).append(at)
                continue
            session = actor.session
            connection = session.connection
            if (
                connection is None
                or not connection.writable
                or not actor.free
                or session in self._excluded
                or not actor.delivery.takes_plain(publisher)
            ):
                self._excluded.add(session)
                if batch is None:
                    batch = self._batch_of([at], v5=v5)
                if actor.stopped:
                    session_ref = node.directory.session(target.session)
                    node.kernel.tell(session_ref, Outgoing(target, batch, 0))
                else:
                    actor.enqueue(batch)
                continue
            actor.matched += 1
            journal.send_unlogged(connection, packet)
            counters.count_sent(connection, 0, 1, len(packet))

    def _end_step(self, *, is_done: bool) -> None:
        if is_done:
            node = self._node
            for (target, v5), numbers in self._shared.items():
                batch = self._batch_of(numbers, v5=v5)
                node.kernel.tell(node.directory.session(target.session), Outgoing(target, batch, 0))

    def _batch_of(self, numbers: Sequence[int], *, v5: bool) -> Batch:
        messages = self._messages
        return Batch(
            0,
            [messages.topics[at] for at in numbers],
            (),
            (),
            packets=[messages.payloads[at] for at in numbers],
            publisher=messages.publishers[numbers[-1]],
            blocks=[messages.blocks[at] for at in numbers] if v5 else None,
        )


_log = structlog.get_logger("foldmq")

_STEP = 64
"""Maximum deliveries in one step, after which the kernel may split the turn."""


class DeliveriesLeft:
    """Unfinished deliveries, and input that was read behind their messages."""

    __slots__ = ("deliveries", "input")

    def __init__(
        self, deliveries: list[TurnDelivery], behind: Mapping[Connection, Sequence[bytes]]
    ) -> None:
        self.deliveries = deliveries
        self.input = behind

    def __repr__(self) -> str:
        """Return the number of deliveries, by QoS."""
        return f"DeliveriesLeft({len(self.deliveries)})"


class FanOut(LoopActor):
    """Makes the deliveries that a pass leaves, in the same turn; it may be split between steps."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__()
        self._node = node
        self.step = _STEP
        """Maximum deliveries in one step."""

    def on_receive(self, message: DeliveriesLeft) -> None:
        """Make some deliveries; hand the input over after the last ones."""
        try:
            message.deliveries = do_deliveries(message.deliveries, self.step)
        except Exception as error:  # noqa: BLE001 - a half-done turn must not continue
            fail_turn(self._node, error)
            return
        if message.deliveries:
            self.kernel.tell(self, message)
        else:
            for connection in message.input:
                connection.on_read_resumed()
            self.hand_over(message.input)

    def hand_over(self, reads: Mapping[Connection, Sequence[bytes]]) -> None:
        """Pass input to the actors of connections, before what waits for them."""
        for connection, chunks in reads.items():
            if not connection.stopped:
                self.kernel.tell_first(connection, b"".join(chunks))


def do_deliveries(deliveries: list[TurnDelivery], most: int) -> list[TurnDelivery]:
    """Make up to ``most`` deliveries of each of these; return those that are not finished."""
    count = 0
    for delivery in deliveries:
        if not delivery.run(most):
            break
        count += 1
    return deliveries[count:]


def fail_turn(node: NodeContext, error: Exception) -> None:
    """End the broker because a turn failed after some of it was recorded."""
    _log.error("turn failed", exc_info=error)
    node.fail(FoldmqError(f"a turn failed: {error!r}; this is a bug, please report it"))
