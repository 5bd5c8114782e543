"""The messages that sessions must or may get, joined one by one and packed by session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from projections.audit.subscription_spans import HeldSubscription, SubscribedSessions

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUIRED: Final = 16
"""Flag in the number of an expectation; the lower bits are the QoS of the message, and that of the
subscription shifted by two bits."""

SpanRow: TypeAlias = tuple[str, str, str, int, int, int, int, int, bool]
"""A subscription: node, session, filter, qos, since, until, begins, ends, no_local."""
EFFECT_COLUMNS: Final = (
    "node", "at", "turn", "ref", "time_ms", "level", "publisher", "origin", "topic", "size",
    "expires",
)  # fmt: skip
EffectRow: TypeAlias = tuple[str, int, int, int, int, int, str, int, str, int, int]
"""A message that took effect, see ``expected_deliveries.PublishedMessages``."""
PackRow: TypeAlias = tuple[str, str, int, bytes]
"""Node, session, position of the first expectation, and the expectations: JSON, [topics,
expectations], and each expectation [at, ref, index of its topic, time_ms, number, origin, size,
expires]."""


class ExpectedPacks:
    """Joins messages with the subscriptions of all sessions; messages must be added in order."""

    def __init__(self, spans: Iterable[SpanRow]) -> None:
        self.count = 0
        """Number of expectations."""
        self._held: dict[str, SubscribedSessions] = {}
        self._packs: dict[tuple[str, str], tuple[dict[str, int], list[tuple[int, ...]]]] = {}
        """Node and session -> the number of each topic, and the expectations."""
        for node, session, topic_filter, qos, since, _until, begins, ends, no_local in spans:
            held = self._held.get(node)
            if held is None:
                held = self._held[node] = SubscribedSessions()
            held.add(topic_filter, HeldSubscription(session, qos, since, begins, ends, no_local))

    def add(self, effects: Iterable[EffectRow]) -> None:
        """Add the expectations of messages that took effect."""
        packs = self._packs
        for node, at, turn, ref, time_ms, level, publisher, origin, topic, size, expires in effects:
            held = self._held.get(node)
            if held is None:
                continue
            for one in held.matching(topic, turn):
                session = one.session
                if one.no_local and session == publisher:
                    continue
                number = level | one.qos << 2
                if one.since < at and turn < one.ends:
                    number |= REQUIRED
                pack = packs.get((node, session))
                if pack is None:
                    pack = packs[node, session] = {}, []
                topics, rows = pack
                which = topics.get(topic)
                if which is None:
                    which = topics[topic] = len(topics)
                rows.append((at, ref, which, time_ms, number, origin, size, expires))
                self.count += 1

    def take(self) -> list[PackRow]:
        """Return everything, and reset."""
        found = [
            (node, session, min(rows)[0], orjson.dumps([[*topics], rows]))
            for (node, session), (topics, rows) in self._packs.items()
        ]
        self._packs.clear()
        self.count = 0
        return found
