"""Encodes what a client at level 5 is sent: properties, identifiers, RETAIN, and their bounds."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from actors.session.messages import WIRES5, Batch
from protocol.mqtt import FilterTrie
from protocol.mqtt5 import RETAIN_AS_PUBLISHED, Wire, count_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.routing.router import Subscriber
    from eventstore.log import Message
    from projections.state import SessionState
    from protocol.mqtt import ConnectProperties

_CACHED_TOPICS = 1024
"""Topics of which it is known which subscription identifiers go with them."""


class DeliveryEncoder:
    """Encodes the deliveries of one session while its client is connected at level 5."""

    __slots__ = ("_identifiers", "_known", "_state", "limit")

    def __init__(self, state: SessionState, properties: ConnectProperties) -> None:
        self._state = state
        self.limit = properties.maximum_packet_size
        """Bytes of the largest packet that the client accepts; 0: any."""
        self._identifiers: FilterTrie[int] | None = None
        """Subscription identifiers by topic filter; None: there are none."""
        self._known: dict[bytes, tuple[int, ...]] = {}
        self.subscriptions_changed()

    def subscriptions_changed(self) -> None:
        """Look anew which subscriptions have identifiers."""
        self._known.clear()
        found = [held for held in self._state.active() if held.identifier]
        self._identifiers = FilterTrie[int]() if found else None
        for held in found:
            self._identifiers.insert(held.filter, held.filter, held.identifier)  # type: ignore[union-attr]

    def identifiers(self, topic: bytes) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a topic [MQTT-3.3.4-3]."""
        if self._identifiers is None:
            return ()
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _CACHED_TOPICS:
                self._known.clear()
            found = tuple(sorted(set(self._identifiers.match(topic.decode()))))
            self._known[topic] = found
        return found

    def render(
        self,
        batch: Batch,
        subscriber: Subscriber,
        qos: int,
        packet_ids: Sequence[int] = (),
        stop: int | None = None,
    ) -> bytes:
        """Encode the first messages of a batch, by default all."""
        parts = []
        for wire, begin, end in self._wires(batch, subscriber, qos, stop):
            if not qos and not begin and end == len(batch):
                parts.append(batch.at_qos0_level5(wire))
            else:
                prepared = batch.prepared5(wire)
                parts.append(prepared.render(packet_ids[begin:end], begin, end))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def too_large(self, batch: Batch, subscriber: Subscriber, qos: int) -> list[int]:
        """Return which messages of a batch make packets that the client does not accept."""
        if not self.limit:
            return []
        found: list[int] = []
        for wire, begin, end in self._wires(batch, subscriber, qos, None):
            large = batch.prepared5(wire).too_large(self.limit)
            found += [at for at in large if begin <= at < end]
        return found

    def _wires(
        self, batch: Batch, subscriber: Subscriber, qos: int, stop: int | None
    ) -> list[tuple[Wire, int, int]]:
        """Return the wires of a batch's messages: each with where it begins and ends."""
        end = len(batch) if stop is None else stop
        published = batch.published_retain and bool(subscriber.options & RETAIN_AS_PUBLISHED)
        retain = batch.retain or published
        if batch.retain:
            held = self._state.subscriptions.get(subscriber.filter)
            own = (held.identifier,) if held is not None and held.identifier else ()
            return [(Wire(qos, retain=True, identifiers=own), 0, end)]
        if self._identifiers is None:
            return [(Wire(qos, retain=True) if retain else WIRES5[qos], 0, end)]
        columns = [self.identifiers(topic) for topic in batch.topics[:end]]
        wires, begin = [], 0
        for identifiers, some in groupby(columns):
            count = len([*some])
            wire = WIRES5[qos]
            if identifiers or retain:
                wire = Wire(qos, retain=retain, identifiers=identifiers)
            wires.append((wire, begin, begin + count))
            begin += count
        return wires

    def render_messages(
        self,
        messages: Sequence[Message],
        flags: tuple[int, bool],
        packet_ids: Sequence[int],
        now_ms: int,
        *,
        dup: bool = False,
    ) -> bytes:
        """Encode messages that waited, or are sent again; ``flags`` are QoS and RETAIN."""
        qos, retain = flags
        columns = [
            (self.identifiers(message.topic), message, packet_id)
            for message, packet_id in zip(messages, packet_ids, strict=True)
        ]
        parts = []
        for identifiers, some in groupby(columns, itemgetter(0)):
            rows = [*some]
            batch = self._batch([row[1] for row in rows], qos, now_ms)
            wire = Wire(qos, retain=retain, identifiers=identifiers)
            parts.append(batch.prepared5(wire).render([row[2] for row in rows], dup=dup))
        return b"".join(parts)

    def is_too_large(self, message: Message, flags: tuple[int, bool], now_ms: int) -> bool:
        """Return whether the client does not accept the packet of a message."""
        if not self.limit:
            return False
        batch = self._batch([message], flags[0], now_ms)
        wire = Wire(flags[0], retain=flags[1], identifiers=self.identifiers(message.topic))
        return bool(batch.prepared5(wire).too_large(self.limit))

    @staticmethod
    def _batch(messages: Sequence[Message], qos: int, now_ms: int) -> Batch:
        blocks = [left_of(message, now_ms) for message in messages]
        return Batch(
            qos,
            [message.topic for message in messages],
            [message.payload for message in messages],
            (),
            blocks=blocks if any(blocks) else (),
        )


def left_of(message: Message, now_ms: int) -> bytes:
    """Return the properties of a message, with the seconds that are left of its expiry."""
    if not message.expires:
        return message.block
    return count_down(message.block, max(0, message.expires - now_ms // 1000))
