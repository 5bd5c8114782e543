"""Handles the packets of a session's client: PUBLISH, acknowledgements, SUBSCRIBE, PINGREQ."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import structlog

from actors.session import decisions
from actors.session.publisher import select
from actors.session.session_messages import NEXT_TURN, Packets
from eventstore.format import format_position, from_runs
from projections.state import QOS_MASK
from protocol.mqtt import (
    FAILURE,
    PINGRESP,
    Acks,
    PacketType,
    Pingreq,
    Publishes,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    encode_acks,
)
from protocol.mqtt5 import encode_explained_acks, is_payload_format_broken

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from actors.session.delivery import Delivery
    from actors.session.interfaces import ClientConnection
    from actors.session.node_context import NodeContext
    from actors.session.publisher import Publisher
    from actors.session.session import Session
    from actors.session.subscription_handler import SubscriptionHandler
    from eventstore.format import Event, Position
    from projections.state import SessionState
    from protocol.mqtt import Packet

_log = structlog.get_logger("foldmq")

_NOT_FOUND: Final = int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
_FORMAT_INVALID: Final = int(ReasonCode.PAYLOAD_FORMAT_INVALID)
_RELEASED_AT_ONCE: Final = 256
"""Packet identifiers of a run of PUBRELs that are handled in one turn."""


class PacketHandler:
    """Handles the packets of one session's client."""

    __slots__ = ("_delivery", "_node", "_publisher", "_session", "_subscriptions")

    def __init__(
        self,
        node: NodeContext,
        session: Session,
        delivery: Delivery,
        publisher: Publisher,
        subscriptions: SubscriptionHandler,
    ) -> None:
        self._node = node
        self._session = session
        self._delivery = delivery
        self._publisher = publisher
        self._subscriptions = subscriptions

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
            rest: Packet | None = None
            if type(packet) is Publishes:
                rest = self._on_publishes(connection, packet)
            elif type(packet) is Acks:
                rest = self._on_acks(connection, packet)
            elif type(packet) is Subscribe:
                session.begin_work(self._subscriptions.subscribe(connection, packet))
            elif type(packet) is Unsubscribe:
                session.begin_work(self._subscriptions.unsubscribe(connection, packet))
            elif type(packet) is Pingreq:
                session.answer(connection, PINGRESP)
            if rest is not None or session.occupied:
                # The rest of this message precedes messages that arrived after it.
                left = message.packets[number:]
                if rest is not None:
                    left = [rest, *left]
                if left:
                    session.stash_first(Packets(connection, left))
                if not session.occupied:
                    session.begin_work(iter((NEXT_TURN,)))
                return

    def _on_publishes(self, connection: ClientConnection, packet: Publishes) -> Publishes | None:
        """Publish as many messages as fit into one turn; return the others."""
        session = self._session
        rest, at_once = None, len(packet)
        if packet.qos < 2:  # others are routed when they are released
            at_once = self._publisher.at_once(packet.topics, packet.qos)
        if not at_once:
            return packet  # passive sessions are activated first
        if at_once < len(packet):
            rest = select(packet, range(at_once, len(packet)))
            packet = select(packet, range(at_once))
        permitted = packet
        if connection.access is not None:
            accepted_ids = session.state.inbound if packet.qos == 2 else ()
            permitted = self._node.permissions.publishes(
                session.name, connection, packet, accepted_ids
            )
        invalid = self._invalid_payloads(packet)
        if invalid:
            permitted = self._without(permitted, invalid)
        qos, ids = packet.qos, packet.packet_ids
        if qos == 2 and self._node.options.reject_qos2_publish:
            _log.info("QoS 2 publish rejected", client=session.name, address=connection.address)
            connection.close_soon("qos2_rejected")
            return None
        if qos or packet.retain:
            permitted = self._without_too_large(connection, permitted)
        if connection.ignores_input:
            # Only messages before the one that caused the close [MQTT-3.3.5-2].
            ids = permitted.packet_ids
        if len(permitted):
            if qos == 2:
                self._publisher.store(session, permitted)
            else:
                self._publisher.publish(permitted)
        if qos and ids:
            kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
            reasons: Sequence[int] = ()
            if connection.properties is not None:
                reasons = self._reasons(connection, packet, invalid)
            self._acknowledge(connection, kind, ids, reasons[: len(ids)])
        return rest

    def _invalid_payloads(self, packet: Publishes) -> set[tuple[bytes, bytes]]:
        """Return (properties, payload) of messages declared as UTF-8 whose payload is not UTF-8.

        Empty unless ``check_payload_format`` is on.
        """
        if not packet.blocks or not self._node.options.check_payload_format:
            return set()
        pairs = set(zip(packet.blocks, packet.payloads, strict=True))
        return {pair for pair in pairs if is_payload_format_broken(*pair)}

    def _without(self, packet: Publishes, invalid: set[tuple[bytes, bytes]]) -> Publishes:
        """Return a packet without messages of an invalid payload, which are recorded as dropped."""
        pairs = zip(packet.blocks or (), packet.payloads, strict=True)
        gone = {at for at, pair in enumerate(pairs) if pair in invalid}
        if gone:
            name, where = self._session.name, None
            if packet.qos or packet.retain:
                topics = [packet.topics[at] for at in sorted(gone)]
                event = decisions.dropped_unrecorded(name, "payload_format", topics)
                where = format_position(self._session.emit(event))
            self._node.count_dropped("payload_format", len(gone), client=name, position=where)
        keep = [at for at in range(len(packet)) if at not in gone]
        return select(packet, keep)

    def _reasons(
        self,
        connection: ClientConnection,
        packet: Publishes,
        invalid: set[tuple[bytes, bytes]],
    ) -> Sequence[int]:
        """Return the reason codes of some messages; empty if all are accepted.

        ``invalid``: messages with these properties and payloads are refused.
        """
        codes: dict[bytes, int] = {}
        for topics in self._publisher.refused_topics(packet).values():
            codes.update(dict.fromkeys(topics, ReasonCode.TOPIC_NAME_INVALID))
        if connection.access is not None:
            denied = connection.access.denied(packet.topics)
            codes.update(dict.fromkeys(denied, ReasonCode.NOT_AUTHORIZED))
        if not codes and not invalid:
            return ()
        inbound = self._session.state.inbound if packet.qos == 2 else {}
        reasons = [
            0 if packet_id in inbound else codes.get(topic, 0)
            for topic, packet_id in zip(packet.topics, packet.packet_ids, strict=True)
        ]
        if invalid:
            pairs = zip(packet.blocks or (), packet.payloads, strict=True)
            for at, pair in enumerate(pairs):
                if pair in invalid and packet.packet_ids[at] not in inbound:
                    reasons[at] = reasons[at] or _FORMAT_INVALID
        return reasons

    def _without_too_large(self, connection: ClientConnection, packet: Publishes) -> Publishes:
        """Close the connection if a message does not fit into the log; return those before it."""
        fitting = self._publisher.fitting(packet)
        if fitting == len(packet):
            return packet
        self._node.limits.refused.add(
            "message_too_large",
            self._node.clock.monotonic(),
            client=self._session.name,
            address=connection.address,
            payload=len(packet.payloads[fitting]),
        )
        connection.close_soon("message_too_large")
        connection.ignore_input()
        return select(packet, range(fitting))

    def _on_acks(self, connection: ClientConnection, packet: Acks) -> Acks | None:
        """Handle acknowledgements; return those that exceed one turn."""
        session = self._session
        kind, ids, reasons = packet.kind, packet.packet_ids, packet.reasons
        events: list[Event | None]
        if kind is PacketType.PUBACK:
            events = [decisions.acked(session.state, ids, reasons)]
        elif kind is PacketType.PUBREC:
            events = self._on_received(connection, ids, reasons)
        elif kind is PacketType.PUBCOMP:
            events = [decisions.completed(session.state, ids, reasons)]
        else:
            most = session.at_once(_RELEASED_AT_ONCE)
            rest = self._on_release(connection, ids[:most])
            rest += ids[most:]
            return Acks(kind, rest) if rest else None
        known = [event for event in events if event is not None]
        for event in known:
            session.emit(event)
        groups = self._node.router.groups
        waiting = session.state.queued or groups.await_room(session.name)
        if known and (waiting or self._delivery.resuming):
            self._delivery.send_queued()
        return None

    def _on_received(
        self, connection: ClientConnection, ids: list[int], reasons: Sequence[int]
    ) -> list[Event | None]:
        """Handle PUBRECs: answer those without an error with PUBREL."""
        state = self._session.state
        if connection.properties is None:
            self._acknowledge(connection, PacketType.PUBREL, ids)
            return [decisions.received(state, ids)]
        ended: dict[int, int] = {}
        if any(reason >= FAILURE for reason in reasons):
            pairs = list(zip(ids, reasons, strict=True))
            ended = {pid: reason for pid, reason in pairs if reason >= FAILURE}
            ids = [pid for pid, reason in pairs if reason < FAILURE]
        if ids:
            codes = _receipt_reasons(state, ids, ended)
            self._acknowledge(connection, PacketType.PUBREL, ids, codes)
        return [
            decisions.refused(state, [*ended], [*ended.values()]),
            decisions.received(state, [pid for pid in ids if pid not in ended]),
        ]

    def _on_release(self, connection: ClientConnection, packet_ids: list[int]) -> list[int]:
        """Release QoS 2 messages; answer with PUBCOMP in any case.

        Returns the packet identifiers that exceed the work of this turn.
        """
        session = self._session
        rest: list[int] = []
        reasons: Sequence[int] = ()
        if connection.properties is not None:
            reasons = _release_reasons(session.state.inbound, packet_ids)
        events = decisions.released(session.state, packet_ids)
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
                events = decisions.released(session.state, packet_ids)
                refs = refs[:at_once]
            for event in events:
                at = session.emit(event)
                released = from_runs(event.refs)
                took_effect = at, at + len(released) - 1
                for retain, some in itertools.groupby(released, lambda ref: found[ref].retain):
                    chosen = [*some]
                    messages = [found[ref] for ref in chosen]
                    self._publisher.release(chosen, messages, took_effect, retain=retain)
            self._delivery.release(refs)
        if connection is session.connection:
            self._acknowledge(
                connection, PacketType.PUBCOMP, packet_ids, reasons[: len(packet_ids)]
            )
        return rest

    def _release_loaded(self, connection: ClientConnection, packet_ids: list[int]) -> None:
        rest = self._on_release(connection, packet_ids)
        if rest:
            self._session.stash_first(Packets(connection, [Acks(PacketType.PUBREL, rest)]))

    def _acknowledge(
        self,
        connection: ClientConnection,
        kind: PacketType,
        packet_ids: Sequence[int],
        reasons: Sequence[int] = (),
    ) -> None:
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


def _receipt_reasons(
    state: SessionState, packet_ids: Sequence[int], ended: Container[int]
) -> list[int]:
    """Return the reason codes of the PUBRELs that answer PUBRECs (MQTT 5).

    ``ended`` are the identifiers whose delivery another PUBREC ends with an error.
    """
    codes = []
    for pid in packet_ids:
        sent = state.inflight.get(pid)
        known = pid in state.releasing or (sent is not None and sent[1] & QOS_MASK == 2)
        codes.append(0 if known and pid not in ended else _NOT_FOUND)
    return codes


def _release_reasons(inbound: Mapping[int, Position], packet_ids: Sequence[int]) -> list[int]:
    """Return the reason codes of the PUBCOMPs that answer PUBRELs (MQTT 5).

    ``inbound`` is what was received and not released. An identifier that occurs twice is unknown
    the second time.
    """
    known = inbound.keys() & packet_ids
    codes = []
    for pid in packet_ids:
        codes.append(0 if pid in known else _NOT_FOUND)
        known.discard(pid)
    return codes
