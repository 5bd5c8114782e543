"""Erasures of another log of the node, which this one follows.

A log has copies of what it took from others, under keys of its own. So when another log records
that an operator requested an erasure, this one erases the topics that match, too; and when another
log does so because it followed, this one erases what it had taken from there since its own erasure.
Copies are sealed under keys of the period of their publication, so an erasure of periods that ended
before a time is one of the same contents in all logs.
A position in the other log is recorded only with what had to be erased up to it, so a crash delays
an erasure, but leaves nothing out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors.session.content_sealing import ContentSealing
from eventstore.format.erasure_events import COPIES, FOLLOWED

if TYPE_CHECKING:
    from actors.exchange.taken_messages import TakenErasure
    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position

_MOST: Final = 65_536
"""Maximum number of topics of a log; beyond it, what was taken is no longer known in detail."""
_AT_ONCE: Final = 512
"""Topics compared with a filter in one turn of the event loop."""


class TakenErasures:
    """Follows the erasures of other logs."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._began: Position = 0
        self._copies: dict[str, dict[str, Position]] = {}
        """For each log the topics of which contents were taken from it, and where here."""

    def begin(self) -> None:
        """Begin; what was taken before is not known in detail."""
        self._began = self._node.journal.last

    def took(self, log: str, topic: str) -> None:
        """Note that contents on a personal topic are taken from a log in this turn."""
        copies = self._copies.setdefault(log, {})
        if len(copies) >= _MOST and topic not in copies:
            self._copies.clear()
            self.begin()
            copies = self._copies.setdefault(log, {})
        copies[topic] = self._node.journal.last + 1

    async def find(self, erasure: TakenErasure) -> None:
        """Add the topics here that match the filter of a request."""
        if not erasure.requested or not erasure.filter:
            return
        keyed, chosen = [*self._node.state.keys.by_topic], dict.fromkeys(erasure.topics)
        for begin in range(0, len(keyed), _AT_ONCE):
            for topic in keyed[begin : begin + _AT_ONCE]:
                if ContentSealing.is_erased_by(erasure.filter, topic):
                    chosen[topic] = None
            await asyncio.sleep(0)
        erasure.topics = [*chosen]

    def record(self, log: str, erasure: TakenErasure) -> bool:
        """Record what is erased here in this turn; return whether that is all."""
        erase = self._node.erase
        if erase is None:
            return True
        before_ms = erasure.before_ms and max(1, erasure.before_ms - self._node.clock.jumped_ms)
        if not (erasure.requested or before_ms):
            erasure.topics = [topic for topic in erasure.topics if self._has_copies(log, topic)]
        return erase(
            erasure.topics, erasure.by, FOLLOWED if erasure.requested else COPIES, before_ms
        )

    def _has_copies(self, log: str, topic: str) -> bool:
        """Return whether the contents of a topic here may include some from a log."""
        keys = self._node.state.keys.of(topic)
        if not keys:
            return False
        since = min(key.since for key in keys)
        return since <= self._began or self._copies.get(log, {}).get(topic, 0) >= since
