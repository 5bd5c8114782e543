"""The messages that sessions must or may get, joined one by one and packed by session."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import orjson

from eventstore.format.positions import INDEX_BITS
from projections.audit.subscription_spans import HeldSubscription, SubscribedSessions

REQUIRED: Final = 16
"""Flag in the number of an expectation; the lower bits are the QoS of the message, and that of the
subscription shifted by two bits."""

SpanRow: TypeAlias = tuple[str, str, str, int, int, int, int, int, bool]
"""A subscription: node, session, filter, qos, since, until, begins, ends, no_local."""
EFFECT_COLUMNS: Final = (
    "node", "at", "ref", "time_ms", "number", "session", "topic", "size", "expires",
)  # fmt: skip
"""Columns of a fact of the kind EFFECT."""
PackRow: TypeAlias = tuple[str, str, int, bytes]
"""Node, session, position of the first expectation, and the expectations: JSON, [names,
expectations], and each expectation [at, ref, index of its topic, time_ms, number, index of its
publisher, size, expires]."""


class ExpectedPacks:
    """Joins messages with the subscriptions of all sessions; messages must be added in order."""

    def __init__(self, spans: Iterable[SpanRow]) -> None:
        self.count = 0
        """Number of expectations."""
        self._held: dict[str, SubscribedSessions] = {}
        self._packs: dict[tuple[str, str], tuple[dict[str, int], list[tuple[int, ...]]]] = {}
        """Node and session -> the number of each name, and the expectations."""
        for node, session, topic_filter, qos, since, _until, begins, ends, no_local in spans:
            held = self._held.get(node)
            if held is None:
                held = self._held[node] = SubscribedSessions()
            held.add(topic_filter, HeldSubscription(session, qos, since, begins, ends, no_local))

    def add(self, effects: Iterable[Any]) -> None:
        """Add the expectations of messages that took effect: rows of ``EFFECT_COLUMNS``."""
        packs = self._packs
        for node, at, ref, time_ms, effect, publisher, topic, size, expires in effects:
            held = self._held.get(node)
            if held is None or not effect & 3:  # a message at QoS 0 may be lost
                continue
            turn = ((at >> INDEX_BITS) - (effect >> 2)) << INDEX_BITS
            for span in held.matching(topic, turn):
                session = span.session
                if span.no_local and session == publisher:
                    continue
                number = effect & 3 | span.qos << 2
                if span.since < at and turn < span.ends:
                    number |= REQUIRED
                pack = packs.get((node, session))
                if pack is None:
                    pack = packs[node, session] = {}, []
                names, rows = pack
                of_topic = names.setdefault(topic, len(names))
                of_publisher = names.setdefault(publisher, len(names))
                rows.append((at, ref, of_topic, time_ms, number, of_publisher, size, expires))
                self.count += 1

    def take(self) -> list[PackRow]:
        """Return everything, and reset."""
        rows_packed = [
            (node, session, min(rows)[0], orjson.dumps([[*names], rows]))
            for (node, session), (names, rows) in self._packs.items()
        ]
        self._packs.clear()
        self.count = 0
        return rows_packed
