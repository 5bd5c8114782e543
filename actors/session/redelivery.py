"""Sends unacknowledged deliveries again: after a reconnect, and after ``ack_wait``.

A client that reconnects gets its unfinished deliveries before anything else [MQTT-4.4.0-1], no more
at a time than it accepts. A client that stays connected with MQTT 3.1.1 gets those again that it
has not acknowledged for some time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain, islice, takewhile
from typing import Final

from actors.session.core import SessionCore
from actors.session.decisions import acknowledgements, queueing
from actors.session.node_context import NodeContext
from actors.session.position_properties import with_position
from actors.session.session_messages import AckCheck
from actors.session.session_output import SessionOutput
from eventstore.format.events import Redelivered
from eventstore.format.positions import to_runs
from projections.state.session import InFlight, SubscriptionState
from projections.state.waiting_queue import QOS_MASK, RAP_FLAG, RETAIN_FLAG
from protocol.mqtt.encoder import encode_acks
from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.replay_filters import is_replay_filter
from protocol.mqtt.shared_filters import SHARE

_AGAIN_AT_ONCE: Final = 256
"""Messages redelivered in one step."""
_AGAIN_STEPS: Final = 4
"""Redelivery steps in one turn."""
_ACKS_UNREAD: Final = 1.0
"""Seconds between checks for acknowledgements of a client whose input is not handled."""


class Redelivery:
    """Sends unacknowledged deliveries of one session again.

    It has no reference to its :class:`Delivery`, which passes itself as an argument: both would be
    a reference cycle when the session ends.
    """

    __slots__ = ("_ack_check_set", "_node", "_repeated", "_session", "_v5", "pending", "resumed")

    def __init__(self, node: NodeContext, session: SessionCore) -> None:
        self._node = node
        self._session = session
        self._ack_check_set = False
        self._v5 = False
        self._repeated: dict[tuple[int, bool], InFlight] = {}
        """Deliveries that ``ack_wait`` repeated, as they were before: repeating them overwrites
        their time in the folded state. By packet identifier, and whether it was the PUBREL."""
        self.pending: deque[int] | None = None
        """Packet identifiers still to be redelivered after a reconnect; None: there are none."""
        self.resumed = False
        """Whether deliveries were unfinished when the client connected."""

    def attach(self, *, v5: bool) -> None:
        """Begin with a client that connected; ``v5``: with MQTT 5."""
        self._v5 = v5
        self._repeated = {}
        self.resumed = False

    def begin(self) -> None:
        """Send PUBREL packets again, and record which deliveries must be sent again."""
        state = self._session.state
        self.pending = deque(state.inflight) if state.inflight else None
        self.resumed = bool(state.inflight or state.releasing)
        if state.releasing:
            self._resend_pubrel(list(state.releasing), "resumed")

    def send_more(self, delivery: SessionOutput) -> None:
        """Continue redelivery after a reconnect, within the Receive Maximum of the client."""
        connection, state = self._session.connection, self._session.state
        steps = 0
        while self.pending and connection is not None and delivery.accepts_output(connection):
            steps += 1
            if steps > _AGAIN_STEPS:
                delivery.send_queued_later()
                return
            room = self._room_again()
            if room <= 0:
                return
            chosen = list(islice(self.pending, min(_AGAIN_AT_ONCE, room)))
            unacked = [pid for pid in chosen if pid in state.inflight]
            if not self._end_unsendable(delivery, unacked, delivery.send_queued):
                return
            unacked = [pid for pid in unacked if pid in state.inflight]
            sent = self._republish(delivery, unacked, "resumed", delivery.send_queued)
            if not sent and unacked:
                return
            last_pid = unacked[sent - 1] if sent < len(unacked) else None
            while self.pending:
                if self.pending.popleft() == (last_pid if last_pid is not None else chosen[-1]):
                    break

    def _end_unsendable(
        self, delivery: SessionOutput, unacked: Sequence[int], again: Callable[[], None]
    ) -> bool:
        """End deliveries that the client may no longer receive.

        It has lost the permission to read the topic, or accepts only smaller packets now
        [MQTT-3.1.2-25], or the content was erased. They end as if they had been sent. Returns False
        while their messages are loaded; then ``again`` is called.
        """
        connection, encoder, state = self._session.connection, delivery.encoder, self._session.state
        access = connection.access if connection is not None else None
        limited = encoder is not None and encoder.limit
        if not unacked or (access is None and not limited and self._node.sealing is None):
            return True
        messages = delivery.find_or_load([state.inflight[pid].ref for pid in unacked], again)
        if messages is None:
            return False
        now_ms = self._node.clock.steady_ms()
        withheld: dict[tuple[str, bool], list[int]] = defaultdict(list)
        """By reason, and whether they are at QoS 2."""
        large: list[int] = []
        for pid in unacked:
            sent = state.inflight[pid]
            message, qos = messages[sent.ref], sent.flags & QOS_MASK
            flags = qos, self._has_retain(sent.flags)
            of = sent.subscription if _is_alone(sent) else None
            if self._node.is_erased(sent.ref, message):
                withheld["erased", qos == 2].append(pid)
            elif access is not None and not access.read[message.topic]:
                withheld["not_permitted", qos == 2].append(pid)
            elif encoder is not None and encoder.is_too_large(message, flags, now_ms, of):
                large.append(pid)
        for reason in ("not_permitted", "erased"):
            self._end(reason, withheld[reason, False], ReasonCode.ADMINISTRATIVE_ACTION)
            self._complete(reason, withheld[reason, True])
        self._end("packet_too_large", large, ReasonCode.PACKET_TOO_LARGE)
        return True

    def _end(self, reason: str, packet_ids: Sequence[int], code: ReasonCode) -> None:
        """End deliveries with a code that no client can send, and count them as dropped."""
        state, reasons = self._session.state, [int(code)] * len(packet_ids)
        for event in (
            acknowledgements.acked(state, packet_ids, reasons),
            acknowledgements.refused(state, packet_ids, reasons),
        ):
            if event is not None:
                self._session.emit(event)
        if packet_ids:
            self._node.count_dropped(reason, len(packet_ids), client=self._session.name)

    def _complete(self, reason: str, packet_ids: Sequence[int]) -> None:
        """Drop the messages of deliveries at QoS 2 that may not be sent again, and send PUBREL.

        A client that has one takes the next PUBLISH with its packet identifier for a repetition:
        the identifier is in use until the client answers the PUBREL.
        """
        if not packet_ids:
            return
        session = self._session
        for sent in [session.state.inflight[pid] for pid in packet_ids]:
            self._node.drop(session.name, reason, [sent.ref], sent.subscription.filter)
        codes = [int(ReasonCode.ADMINISTRATIVE_ACTION)] * len(packet_ids)
        received = acknowledgements.received(session.state, packet_ids, codes)
        if received is not None:
            session.emit(received)
        if session.connection is not None:
            pubrel = encode_acks(PacketType.PUBREL, packet_ids)
            self._node.journal.send_when_durable(session.connection, pubrel)
            self._node.counters.packets_out += len(packet_ids)

    def _has_retain(self, flags: int) -> bool:
        """Return whether a delivery is redelivered with RETAIN."""
        as_published = self._v5 or self._session.state.bridge
        return bool(flags & (RETAIN_FLAG | RAP_FLAG if as_published else RETAIN_FLAG))

    def _room_again(self) -> int:
        """Return how many more messages the client accepts before it acknowledges some.

        Those that were sent again precede the pending ones in ``inflight``.
        """
        state, pending = self._session.state, self.pending
        while pending and pending[0] not in state.inflight:
            pending.popleft()  # acknowledged before it was sent again
        sent = len(state.inflight)
        if pending:
            first = pending[0]
            sent = sum(1 for _ in takewhile(lambda pid: pid != first, state.inflight))
        return state.receive_maximum - sent - len(state.releasing)

    def _republish(
        self,
        delivery: SessionOutput,
        unacked: Sequence[int],
        cause: str,
        again: Callable[[], None],
    ) -> int:
        """Send PUBLISH packets again, with DUP; return how many, as their bytes are bounded.

        Returns 0 if their messages must be loaded first; then ``again`` is called after loading.
        """
        connection, state = self._session.connection, self._session.state
        if connection is None or not unacked:
            return 0
        stored = delivery.find_or_load([state.inflight[pid].ref for pid in unacked], again)
        if stored is None:
            return 0
        payloads = [stored[state.inflight[pid].ref].payload for pid in unacked]
        unacked = unacked[: queueing.within(payloads, self._node.delivery_limits.batch_bytes)]
        parts = []
        for (flags, of), run in _alike([(pid, state.inflight[pid]) for pid in unacked]):
            messages = [stored[sent.ref] for _, sent in run]
            if self._v5 and of is not None and is_replay_filter(of.filter):
                # Where it took effect is not known; where it was published is not later.
                messages = [
                    with_position(message, sent.ref)
                    for message, (_, sent) in zip(messages, run, strict=True)
                ]
            numbers = [pid for pid, _ in run]
            sent_as = flags & QOS_MASK, self._has_retain(flags)
            parts.append(delivery.encode(messages, sent_as, numbers, dup=True, of=of))
            self._node.counters.count_sent(connection, flags & QOS_MASK, len(run), len(parts[-1]))
        delivery.release([state.inflight[pid].ref for pid in unacked])
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

    def _keep_first(self, pids: Sequence[int], *, released: bool) -> None:
        """Remember deliveries that are about to be sent again."""
        table = self._unfinished(released=released)
        for pid in pids:
            self._repeated[pid, released] = self._first(pid, table[pid], released=released)

    def _unfinished(self, *, released: bool) -> dict[int, InFlight]:
        """Return the deliveries that wait for PUBCOMP, or else for PUBACK or PUBREC."""
        state = self._session.state
        return state.releasing if released else state.inflight

    def _first(self, pid: int, sent: InFlight, *, released: bool) -> InFlight:
        """Return an unfinished delivery as it was before ``ack_wait`` repeated it."""
        first = self._repeated.get((pid, released))
        if first is None or first.ref != sent.ref or first.subscription is not sent.subscription:
            return sent  # the packet identifier may now belong to another delivery
        return first

    def _forget_completed(self) -> None:
        """Forget the repeated deliveries that the client has completed."""
        kept: dict[tuple[int, bool], InFlight] = {}
        for (pid, released), first in self._repeated.items():
            sent = self._unfinished(released=released).get(pid)
            if sent is not None and first.ref == sent.ref:
                kept[pid, released] = first
        self._repeated = kept

    def oldest_ms(self, *, released: bool) -> int:
        """Return when the oldest unfinished delivery was first sent; 0: there is none.

        ``released``: when the first PUBREL was sent, of the deliveries that wait for PUBCOMP.
        Redelivery after ``ack_wait`` does not count; redelivery after a reconnect does.
        """
        table, first = self._unfinished(released=released), self._first
        if not self._repeated:
            return min([sent.sent_ms for sent in table.values()], default=0)
        times = [first(pid, sent, released=released).sent_ms for pid, sent in table.items()]
        return min(times, default=0)

    def expect_acks(self) -> None:
        """Check after ``ack_wait`` for missing acknowledgements."""
        wait = self._node.options.ack_wait
        if self._v5:
            return  # no redelivery to a connected MQTT 5 client [MQTT-4.4.0-1]
        if wait and not self._ack_check_set:
            self._ack_check_set = True
            self._session.start_timer(self._node.timers, wait, self._remember_acks)

    def _remember_acks(self) -> None:
        if not self._session.stopped:
            self._session.kernel.tell(self._session, AckCheck())

    def check_acks(self, delivery: SessionOutput) -> None:
        """Redeliver messages that were not acknowledged within ``ack_wait``."""
        connection, state = self._session.connection, self._session.state
        wait = self._node.options.ack_wait
        nothing = not (state.inflight or state.releasing)
        if self._repeated:
            self._forget_completed()
        if connection is None or not wait or nothing or self._v5:
            self._ack_check_set = False
            return
        if connection.unhandled or connection.paused:
            # Acknowledgements may be among the input that the broker has not handled yet.
            self._session.start_timer(
                self._node.timers, min(wait, _ACKS_UNREAD), self._remember_acks
            )
            return
        late = self._node.clock.steady_ms() - int(wait * 1000)
        unacked = [pid for pid, sent in state.inflight.items() if sent.sent_ms <= late]
        unreleased = [pid for pid, sent in state.releasing.items() if sent.sent_ms <= late]
        delay = wait
        if delivery.accepts_output(connection) and not self.pending:
            if unreleased:
                self._resend_pubrel(unreleased, "ack_wait")
            if unacked:
                part = unacked[:_AGAIN_AT_ONCE]
                if self._end_unsendable(delivery, part, delivery.check_acks):
                    part = [pid for pid in part if pid in state.inflight]
                    self._republish(delivery, part, "ack_wait", delivery.check_acks)
                if delivery.loading:
                    return
            oldest = min(
                (sent.sent_ms for sent in chain(state.inflight.values(), state.releasing.values())),
                default=self._node.clock.steady_ms(),
            )
            delay = wait - (self._node.clock.steady_ms() - oldest) / 1000
        delay = min(wait, max(0.05, delay))
        self._session.start_timer(self._node.timers, delay, self._remember_acks)


def _alike(
    entries: list[tuple[int, InFlight]],
) -> list[tuple[tuple[int, SubscriptionState | None], list[tuple[int, InFlight]]]]:
    """Group adjacent deliveries by flags; others may also differ by subscription."""
    groups: list[tuple[tuple[int, SubscriptionState | None], list[tuple[int, InFlight]]]] = []
    for pid, sent in entries:
        key = sent.flags, sent.subscription if _is_alone(sent) else None
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        groups[-1][1].append((pid, sent))
    return groups


def _is_alone(sent: InFlight) -> bool:
    """Return whether a delivery belongs to one subscription only, even if others match.

    This holds for retained messages, for those of a shared subscription, and of a replay.
    """
    held = sent.subscription.filter
    return bool(sent.flags & RETAIN_FLAG) or held.startswith(SHARE) or is_replay_filter(held)
