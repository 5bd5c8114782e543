"""Handles the packets of a session's client: PUBLISH, acknowledgements, SUBSCRIBE, PINGREQ.

The way of a client's messages begins in :meth:`PacketHandler.on_publishes`; what is admitted there,
:class:`~actors.session.publisher.Publisher` records and routes.
"""

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Final

import structlog

from actors.session.core import SessionCore
from actors.session.decisions import acknowledgements, publish_admission
from actors.session.delivery import Delivery
from actors.session.node_context import NodeContext
from actors.session.publisher import Publisher
from actors.session.session_messages import NEXT_TURN, ClientConnection, Packets
from actors.session.subscription_handler import SubscriptionHandler
from eventstore.format.destination_events import OriginTaken
from eventstore.format.event_parsing import Event
from eventstore.format.events import InboundReplaced
from eventstore.format.positions import Position, from_runs, to_runs
from eventstore.log.message_store import Message
from projections.state.session import SessionState
from projections.state.waiting_queue import QOS_MASK
from protocol.mqtt.encoder import PINGRESP, encode_acks
from protocol.mqtt.loop_path import has_passed
from protocol.mqtt.origin_properties import LogRun, Origin, split_origin
from protocol.mqtt.packets import (
    Acks,
    Packet,
    PacketType,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.reason_codes import FAILURE, ReasonCode
from protocol.mqtt.server_packet_encoder_v5 import encode_explained_acks

_log = structlog.get_logger("foldmq")

_NOT_FOUND: Final = int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
_FOR_NOW: Final = int(ReasonCode.QUOTA_EXCEEDED)
"""Reason code at which the bridge of a foldmq sends a message again."""
_RELEASED_AT_ONCE: Final = 256
"""Packet identifiers of a run of PUBRELs that are handled in one turn."""


class PacketHandler(Publisher):
    """Handles the packets of one session's client: its messages are published and acknowledged."""

    __slots__ = ("_delivery", "_refused_on", "_session", "_subscriptions", "bridged", "is_bridge")

    def __init__(
        self,
        node: NodeContext,
        session: SessionCore,
        delivery: Delivery,
        subscriptions: SubscriptionHandler,
    ) -> None:
        super().__init__(node, session.name)
        self._session = session
        self._delivery = delivery
        self._subscriptions = subscriptions
        self.bridged: LogRun | None = None
        """The log of which the client is a bridge; None: it is none of a foldmq."""
        self.is_bridge = False
        """Whether the client is known to be a bridge that passes properties on (MQTT 5)."""
        self._refused_on: ClientConnection | None = None
        """The connection of the bridge on which a message was refused for now."""

    def handle(self, message: Packets) -> None:
        """Handle the packets of one read of the connection."""
        session = self._session
        connection = message.connection
        if connection is not session.connection:
            if not connection.ended:
                # The client must not keep talking to a session that does not listen.
                connection.close_soon("session_lost")
            return
        for number, packet in enumerate(message.packets, 1):
            if connection.ignores_input:
                return
            unhandled: Packet | None = None
            if type(packet) is Publishes:
                unhandled = self.on_publishes(connection, packet)
            elif type(packet) is Acks:
                unhandled = self._on_acks(connection, packet)
            elif type(packet) is Subscribe:
                session.begin_work(self._subscriptions.subscribe(connection, packet))
            elif type(packet) is Unsubscribe:
                session.begin_work(self._subscriptions.unsubscribe(connection, packet))
            elif type(packet) is Pingreq:
                session.answer(connection, PINGRESP)
            if unhandled is not None or session.occupied:
                # The rest of this message precedes messages that arrived after it.
                packets = message.packets[number:]
                if unhandled is not None:
                    packets = [unhandled, *packets]
                if packets:
                    session.stash_first(Packets(connection, packets))
                if not session.occupied:
                    session.begin_work(iter((NEXT_TURN,)))
                return

    # PUBLISH.

    def on_publishes(self, connection: ClientConnection, packet: Publishes) -> Publishes | None:
        """Publish as many messages as fit into one turn; return the others."""
        if not self.is_bridge or not packet.blocks:
            return self._publish_some(connection, packet, len(packet))
        packet, most = self._end_loops(connection, packet)
        return self._publish_some(connection, packet, most) if most else None

    def _publish_some(
        self, connection: ClientConnection, packet: Publishes, most: int
    ) -> Publishes | None:
        """Publish the first of at most ``most`` messages; return the others."""
        later_messages, at_once = None, most
        if packet.qos < 2:  # others are routed when they are released
            at_once = min(most, self.at_once(packet.topics, packet.qos))
        elif not packet.dup:
            at_once = min(most, _distinct(packet.packet_ids))
        if not at_once:
            return packet  # frozen sessions are activated first
        if at_once < len(packet):
            later_messages = packet.select(range(at_once, len(packet)))
            packet = packet.select(range(at_once))
        if packet.qos == 2 and not packet.dup and not self._replace(connection, packet):
            return later_messages
        origins: dict[int, Origin] = {}
        if self.bridged is not None and packet.qos == 1:
            packet = self._without_known(connection, self.bridged, packet, origins)
            if not packet.topics:
                return later_messages
        recorded = packet.qos > 0 or packet.retain
        admitted, behind = self._admit(connection, packet, origins, recorded=recorded)
        for reason, topics in admitted.drops:
            self._refuse(connection, reason, topics, recorded=recorded)
        if admitted.close:
            self._close(connection, packet, admitted)
        if admitted.accepted:
            if packet.qos == 2:
                self.store(admitted.accepted)
            elif self.bridged is not None and origins:
                self._take(self.bridged, admitted.accepted, origins)
            else:
                self.publish(admitted.accepted)
        if packet.qos and admitted.answered:
            kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
            ids = packet.packet_ids[: admitted.answered]
            self.acknowledge(connection, kind, ids, admitted.reasons)
        self._refuse_for_now(connection, behind)
        return later_messages

    def _end_loops(self, connection: ClientConnection, packet: Publishes) -> tuple[Publishes, int]:
        """Acknowledge the first messages if they have passed this broker before.

        Return the others, and how many precede the next one that has; 0: there are no others.
        """
        logs = self._node.logs
        looped = [has_passed(block, logs) for block in packet.blocks or ()]
        count = looped.index(False) if False in looped else len(looped)
        if count:
            self._node.count_dropped(publish_admission.BRIDGE_LOOP, count, client=self.name)
            if packet.qos:
                kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
                self.acknowledge(connection, kind, packet.packet_ids[:count])
            packet = packet.select(range(count, len(packet)))
        loops_behind = looped[count:]
        return packet, loops_behind.index(True) if True in loops_behind else len(loops_behind)

    def _admit(
        self,
        connection: ClientConnection,
        packet: Publishes,
        origins: Mapping[int, Origin],
        *,
        recorded: bool,
    ) -> tuple[publish_admission.AdmittedPublish, Sequence[int]]:
        """Decide about messages, up to one that a bridge sends again.

        It would be taken for known then if this log had one behind it. The second result are the
        packet identifiers of those behind it.
        """
        state, name = self._session.state, self._session.name
        if self._node.names is not None:
            name = connection.given_id
        admitted = publish_admission.admit(
            packet,
            self._node.publish_rules,
            connection.access,
            state.inbound,
            self.too_large(packet) if recorded else (),
            explain=connection.properties is not None,
            bridge=state.bridge or (state.level == 5 and name),
        )
        if not origins or _FOR_NOW not in admitted.reasons:
            return admitted, ()
        self._refused_on = connection
        count = admitted.reasons.index(_FOR_NOW) + 1
        first, _ = self._admit(connection, packet.select(range(count)), {}, recorded=recorded)
        return first, packet.packet_ids[count:]

    def _refuse_for_now(self, connection: ClientConnection, packet_ids: Sequence[int]) -> None:
        """Refuse messages of a bridge, which sends them again over another connection."""
        if packet_ids:
            reasons = [_FOR_NOW] * len(packet_ids)
            self.acknowledge(connection, PacketType.PUBACK, packet_ids, reasons)

    def _without_known(
        self,
        connection: ClientConnection,
        bridged: LogRun,
        packet: Publishes,
        origins: dict[int, Origin],
    ) -> Publishes:
        """Acknowledge messages that this log has; return the others, and their ``origins``."""
        if connection is self._refused_on:
            self._refuse_for_now(connection, packet.packet_ids)
            return packet.select(range(0))
        origin_taken = self._node.state.destinations.taken.get(self.name)
        if origin_taken is None or (origin_taken.log, origin_taken.run) != bridged:
            through = recorded_ms = 0
        else:
            through, recorded_ms = origin_taken.through, origin_taken.recorded_ms
        blocks, known_numbers = [*(packet.blocks or ())], []
        for at, block in enumerate(blocks):
            origin, blocks[at] = split_origin(block)
            if origin is None:
                continue
            if origin.at <= through and origin.time_ms <= recorded_ms:
                known_numbers.append(at)
            else:
                through, _, recorded_ms = origins[packet.packet_ids[at]] = origin
        packet.blocks = blocks if any(blocks) else []
        if not known_numbers:
            return packet
        self.acknowledge(
            connection, PacketType.PUBACK, [packet.packet_ids[at] for at in known_numbers]
        )
        others = frozenset(known_numbers)
        return packet.select([at for at in range(len(packet)) if at not in others])

    def _take(self, bridged: LogRun, packet: Publishes, origins: dict[int, Origin]) -> None:
        """Publish messages of another log, and record where they come from in the same turn."""
        refs: list[Position] = []
        for part in self._split(packet):
            first = self._publish_now(part)
            refs += range(first, first + len(part))
        pairs = [
            (ref, origins[pid])
            for ref, pid in zip(refs, packet.packet_ids, strict=True)
            if pid in origins
        ]
        if pairs:
            through, _, recorded_ms = pairs[-1][1]
            places = (
                to_runs([ref for ref, _ in pairs]),
                to_runs([each.position for _, each in pairs]),
            )
            self._node.emit(OriginTaken(self.name, *bridged, through, recorded_ms, *places))

    def _replace(self, connection: ClientConnection, packet: Publishes) -> bool:
        """Discard messages whose packet identifiers the client uses for others.

        It has lost its state: a message sent again would be the same. Returns False while the
        earlier messages are loaded; ``packet`` is handled then.
        """
        session = self._session
        inbound = session.state.inbound
        if inbound.keys().isdisjoint(packet.packet_ids):
            return True
        again = [message for message in packet if message.packet_id in inbound]
        refs = [inbound[message.packet_id] for message in again]
        messages = self._delivery.find_or_load(
            refs, lambda: self._publish_loaded(connection, packet)
        )
        if messages is None:
            return False
        replaced = {
            message.packet_id: ref
            for message, ref in zip(again, refs, strict=True)
            if not _is_same(message, messages[ref])
        }
        self._delivery.release(refs)
        if replaced:
            pids, old = (
                acknowledgements.in_parts([*replaced]),
                acknowledgements.in_parts([*replaced.values()]),
            )
            for part, of in zip(pids, old, strict=True):
                session.emit(InboundReplaced(session.name, to_runs(part), to_runs(of)))
            _log.info(
                "QoS 2 messages given up: packet identifiers used again without PUBREL",
                client=session.name,
                address=connection.address,
                messages=len(replaced),
            )
        return True

    def _publish_loaded(self, connection: ClientConnection, packet: Publishes) -> None:
        if connection is self._session.connection:
            self.on_publishes(connection, packet)

    def _refuse(
        self, connection: ClientConnection, reason: str, topics: list[bytes], *, recorded: bool
    ) -> None:
        """Count messages that are not admitted; record that if they would have been recorded."""
        if reason == publish_admission.NOT_PERMITTED:
            name = self._session.name
            self._node.permissions.deny_publish(name, connection, topics, recorded=recorded)
        else:
            self.drop(reason, topics, recorded=recorded)

    def _close(
        self,
        connection: ClientConnection,
        packet: Publishes,
        admitted: publish_admission.AdmittedPublish,
    ) -> None:
        """Close the connection because of a message."""
        reason, client = admitted.close, self._session.name
        connection.close_soon(reason)
        if reason == publish_admission.QOS2_REJECTED:
            _log.info("QoS 2 publish rejected", client=client, address=connection.address)
            return
        if reason == publish_admission.TOO_LARGE:
            self._node.limits.refused.add(
                reason,
                self._node.clock.monotonic(),
                client=client,
                address=connection.address,
                payload=len(packet.payloads[admitted.answered]),
            )
        connection.ignore_input()

    def acknowledge(
        self,
        connection: ClientConnection,
        kind: PacketType,
        packet_ids: Sequence[int],
        reasons: Sequence[int] = (),
    ) -> None:
        """Answer messages of the client with packets of one kind, once they are on disk."""
        if connection.receive_window is not None:
            connection.receive_window.acknowledge(self._node.journal, kind, packet_ids, reasons)
        properties = connection.properties
        if properties is not None and any(reasons):
            data = encode_explained_acks(
                kind,
                packet_ids,
                reasons,
                limit=properties.maximum_packet_size,
                explain=properties.request_problem_information,
            )
        else:
            data = encode_acks(kind, packet_ids)
        self._session.answer(connection, data, len(packet_ids))

    # Acknowledgements.

    def _on_acks(self, connection: ClientConnection, packet: Acks) -> Acks | None:
        """Handle acknowledgements; return those that exceed one turn."""
        session = self._session
        kind, ids, reasons = packet.kind, packet.packet_ids, packet.reasons
        events: list[Event | None]
        if kind is PacketType.PUBACK:
            events = [acknowledgements.acked(session.state, ids, reasons)]
        elif kind is PacketType.PUBREC:
            events = self._on_received(connection, ids, reasons)
        elif kind is PacketType.PUBCOMP:
            events = [acknowledgements.completed(session.state, ids, reasons)]
        else:
            most = session.at_once(_RELEASED_AT_ONCE)
            unreleased = self._on_release(connection, ids[:most])
            unreleased += ids[most:]
            return Acks(kind, unreleased) if unreleased else None
        decided_events = [event for event in events if event is not None]
        for event in decided_events:
            session.emit(event)
            connection.last_ack = connection.last_read
        if decided_events and session.awaits_acks:
            self._delivery.send_queued()
        return None

    def _on_received(
        self, connection: ClientConnection, ids: list[int], reasons: Sequence[int]
    ) -> list[Event | None]:
        """Handle PUBRECs: answer those without an error with PUBREL."""
        state = self._session.state
        if connection.properties is None:
            self.acknowledge(connection, PacketType.PUBREL, ids)
            return [acknowledgements.received(state, ids)]
        ended: dict[int, int] = {}
        if any(reason >= FAILURE for reason in reasons):
            pairs = list(zip(ids, reasons, strict=True))
            ended = {pid: reason for pid, reason in pairs if reason >= FAILURE}
            ids = [pid for pid, reason in pairs if reason < FAILURE]
        if ids:
            codes = _receipt_reasons(state, ids, ended)
            self.acknowledge(connection, PacketType.PUBREL, ids, codes)
        return [
            acknowledgements.refused(state, [*ended], [*ended.values()]),
            acknowledgements.received(state, [pid for pid in ids if pid not in ended]),
        ]

    def _on_release(self, connection: ClientConnection, packet_ids: list[int]) -> list[int]:
        """Release QoS 2 messages; answer with PUBCOMP in any case.

        Returns the packet identifiers that exceed the work of this turn.
        """
        session = self._session
        unreleased: list[int] = []
        reasons: Sequence[int] = ()
        if connection.properties is not None:
            reasons = _release_reasons(session.state.inbound, packet_ids)
        events = acknowledgements.released(session.state, packet_ids)
        if events:
            refs = [ref for event in events for ref in from_runs(event.refs)]
            stored = self._delivery.find_or_load(
                refs, lambda: self._release_loaded(connection, packet_ids)
            )
            if stored is None:
                return []
            if self._give_up_erased(refs, stored):
                return self._on_release(connection, packet_ids)
            at_once = self.at_once([stored[ref].topic for ref in refs], 2)
            if not at_once:
                return packet_ids
            if at_once < len(refs):
                pids = [pid for event in events for pid in from_runs(event.pids)]
                stop = packet_ids.index(pids[at_once - 1]) + 1
                packet_ids, unreleased = packet_ids[:stop], packet_ids[stop:]
                events = acknowledgements.released(session.state, packet_ids)
                refs = refs[:at_once]
            for event in events:
                at = session.emit(event)
                released = from_runs(event.refs)
                took_effect = at, at + len(released) - 1
                for retain, group in itertools.groupby(released, lambda ref: stored[ref].retain):
                    chosen = [*group]
                    messages = [stored[ref] for ref in chosen]
                    self.release(chosen, messages, took_effect, retain=retain)
            self._delivery.release(refs)
        if connection is session.connection:
            self.acknowledge(connection, PacketType.PUBCOMP, packet_ids, reasons[: len(packet_ids)])
        return unreleased

    def _give_up_erased(self, refs: Sequence[Position], stored: Mapping[Position, Message]) -> bool:
        """Drop messages that were erased before their release; return whether there were any."""
        session, node = self._session, self._node
        erased_refs = [ref for ref in refs if node.is_erased(ref, stored[ref])]
        if erased_refs:
            of = {ref: pid for pid, ref in session.state.inbound.items()}
            pids = to_runs([of[ref] for ref in erased_refs])
            session.emit(InboundReplaced(session.name, pids, to_runs(erased_refs)))
            node.count_dropped("erased", len(erased_refs), client=session.name)
        return bool(erased_refs)

    def _release_loaded(self, connection: ClientConnection, packet_ids: list[int]) -> None:
        unreleased = self._on_release(connection, packet_ids)
        if unreleased:
            self._session.stash_first(Packets(connection, [Acks(PacketType.PUBREL, unreleased)]))


def _distinct(packet_ids: Sequence[int]) -> int:
    """Return how many packet identifiers, counted from the first, differ from those before."""
    if len(set(packet_ids)) == len(packet_ids):
        return len(packet_ids)
    seen: set[int] = set()
    for pid in packet_ids:
        if pid in seen:
            break
        seen.add(pid)
    return len(seen)


def _is_same(message: Publish, stored: Message) -> bool:
    """Return whether a message that was not released is sent again."""
    return (message.topic, message.payload, message.retain, message.block) == (
        stored.topic,
        stored.payload,
        stored.retain,
        stored.block,
    )


def _receipt_reasons(
    state: SessionState, packet_ids: Sequence[int], ended: Container[int]
) -> list[int]:
    """Return the reason codes of the PUBRELs that answer PUBRECs (MQTT 5).

    ``ended`` are the identifiers whose delivery another PUBREC ends with an error.
    """
    codes = []
    for pid in packet_ids:
        sent = state.inflight.get(pid)
        is_known = pid in state.releasing or (sent is not None and sent[1] & QOS_MASK == 2)
        codes.append(0 if is_known and pid not in ended else _NOT_FOUND)
    return codes


def _release_reasons(inbound: Mapping[int, Position], packet_ids: Sequence[int]) -> list[int]:
    """Return the reason codes of the PUBCOMPs that answer PUBRELs (MQTT 5).

    ``inbound`` is what was received and not released. An identifier that occurs twice is unknown
    the second time.
    """
    known_pids = inbound.keys() & packet_ids
    codes = []
    for pid in packet_ids:
        codes.append(0 if pid in known_pids else _NOT_FOUND)
        known_pids.discard(pid)
    return codes
