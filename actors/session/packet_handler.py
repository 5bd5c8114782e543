"""Handles the packets of a session's client: PUBLISH, acknowledgements, SUBSCRIBE, PINGREQ."""

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Final

import structlog

from actors.session.core import SessionCore
from actors.session.decisions import acknowledgements
from actors.session.delivery import Delivery
from actors.session.node_context import NodeContext
from actors.session.publisher import ClientPublisher
from actors.session.session_messages import NEXT_TURN, ClientConnection, Packets
from actors.session.subscription_handler import SubscriptionHandler
from eventstore.format.event_parsing import Event
from eventstore.format.events import InboundReplaced
from eventstore.format.positions import Position, from_runs, to_runs
from eventstore.log.message_store import Message
from projections.state.session import SessionState
from projections.state.waiting_queue import QOS_MASK
from protocol.mqtt.encoder import PINGRESP
from protocol.mqtt.packets import (
    Acks,
    Packet,
    PacketType,
    Pingreq,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.reason_codes import FAILURE, ReasonCode

_log = structlog.get_logger("foldmq")

_NOT_FOUND: Final = int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
_RELEASED_AT_ONCE: Final = 256
"""Packet identifiers of a run of PUBRELs that are handled in one turn."""


class PacketHandler:
    """Handles the packets of one session's client."""

    __slots__ = ("_delivery", "_node", "_publisher", "_session", "_subscriptions")

    def __init__(
        self,
        node: NodeContext,
        session: SessionCore,
        delivery: Delivery,
        publisher: ClientPublisher,
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
                rest = self._publisher.on_publishes(connection, packet)
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
            rest = self._on_release(connection, ids[:most])
            rest += ids[most:]
            return Acks(kind, rest) if rest else None
        known = [event for event in events if event is not None]
        for event in known:
            session.emit(event)
            connection.last_ack = connection.last_read
        if known and session.awaits_acks:
            self._delivery.send_queued()
        return None

    def _on_received(
        self, connection: ClientConnection, ids: list[int], reasons: Sequence[int]
    ) -> list[Event | None]:
        """Handle PUBRECs: answer those without an error with PUBREL."""
        state = self._session.state
        if connection.properties is None:
            self._publisher.acknowledge(connection, PacketType.PUBREL, ids)
            return [acknowledgements.received(state, ids)]
        ended: dict[int, int] = {}
        if any(reason >= FAILURE for reason in reasons):
            pairs = list(zip(ids, reasons, strict=True))
            ended = {pid: reason for pid, reason in pairs if reason >= FAILURE}
            ids = [pid for pid, reason in pairs if reason < FAILURE]
        if ids:
            codes = _receipt_reasons(state, ids, ended)
            self._publisher.acknowledge(connection, PacketType.PUBREL, ids, codes)
        return [
            acknowledgements.refused(state, [*ended], [*ended.values()]),
            acknowledgements.received(state, [pid for pid in ids if pid not in ended]),
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
        events = acknowledgements.released(session.state, packet_ids)
        if events:
            refs = [ref for event in events for ref in from_runs(event.refs)]
            stored = self._delivery.find(refs)
            if stored is None:
                self._delivery.load(refs, lambda: self._release_loaded(connection, packet_ids))
                return []
            if self._give_up_erased(refs, stored):
                return self._on_release(connection, packet_ids)
            at_once = self._publisher.at_once([stored[ref].topic for ref in refs], 2)
            if not at_once:
                return packet_ids
            if at_once < len(refs):
                pids = [pid for event in events for pid in from_runs(event.pids)]
                stop = packet_ids.index(pids[at_once - 1]) + 1
                packet_ids, rest = packet_ids[:stop], packet_ids[stop:]
                events = acknowledgements.released(session.state, packet_ids)
                refs = refs[:at_once]
            for event in events:
                at = session.emit(event)
                released = from_runs(event.refs)
                took_effect = at, at + len(released) - 1
                for retain, group in itertools.groupby(released, lambda ref: stored[ref].retain):
                    chosen = [*group]
                    messages = [stored[ref] for ref in chosen]
                    self._publisher.release(chosen, messages, took_effect, retain=retain)
            self._delivery.release(refs)
        if connection is session.connection:
            self._publisher.acknowledge(
                connection, PacketType.PUBCOMP, packet_ids, reasons[: len(packet_ids)]
            )
        return rest

    def _give_up_erased(self, refs: Sequence[Position], stored: Mapping[Position, Message]) -> bool:
        """Drop messages that were erased before their release; return whether there were any."""
        session, sealing, node = self._session, self._node.sealing, self._node
        gone = [ref for ref in refs if sealing and sealing.is_erased(ref, stored[ref])]
        if gone:
            of = {ref: pid for pid, ref in session.state.inbound.items()}
            pids = to_runs([of[ref] for ref in gone])
            session.emit(InboundReplaced(session.name, pids, to_runs(gone)))
            node.count_dropped("erased", len(gone), client=session.name)
        return bool(gone)

    def _release_loaded(self, connection: ClientConnection, packet_ids: list[int]) -> None:
        rest = self._on_release(connection, packet_ids)
        if rest:
            self._session.stash_first(Packets(connection, [Acks(PacketType.PUBREL, rest)]))


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
