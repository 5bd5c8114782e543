"""The topics with the most messages, counted by sampling and only while they are queried."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from eventstore.format.events import LOG_SESSION

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import Publication

_LEASE = 10.0
"""Seconds without a query after which counting stops."""
_SHORTEST = 1.0
"""Minimum seconds of a measurement."""
_SAMPLED = 16
"""Maximum topics of a batch that are sampled."""
_KEPT = 4096
_MAX_RETURNED = 50


class BusiestTopics:
    """Counts messages by topic between two queries."""

    def __init__(self, node: NodeContext, lease: float = _LEASE) -> None:
        self._node = node
        self._lease = lease
        self.complete = True
        """Whether all topics are counted; the rarest of too many are left out."""
        self._counts: Counter[bytes] = Counter()
        self._began = 0.0
        self._asked = 0.0
        self._last: list[tuple[str, float]] = []
        self._watching = False

    def take_rates(self) -> list[tuple[str, float]]:
        """Return the busiest topics with their messages per second, and restart counting.

        The first query starts the counting and returns nothing. A query right after another one
        returns the same.
        """
        now = self._node.clock.monotonic()
        if self._begin(now):
            self._last = []
        elif now - self._began >= _SHORTEST:
            span, counts = now - self._began, self._counts
            self._counts, self._began = Counter(), now
            self._last = [
                (topic.decode(), round(count / span, 1))
                for topic, count in counts.most_common(_MAX_RETURNED)
            ]
        return self._last

    def counts(self) -> tuple[Counter[bytes], float]:
        """Return the messages by topic, and for how many seconds they have been counted.

        The first query starts the counting, which goes on until there are no more queries.
        """
        now = self._node.clock.monotonic()
        self._begin(now)
        return self._counts, now - self._began

    def _begin(self, now: float) -> bool:
        """Count from now on; return False if that had begun."""
        self._asked = now
        if self._watching:
            return False
        self._watching = self.complete = True
        self._began = now
        self._node.add_observer(self)
        self._node.timers.after(self._lease, self._look)
        return True

    def published(self, publication: Publication) -> None:
        """Count messages by topic."""
        if publication.session.startswith(LOG_SESSION):
            # Taken from another log, whose broker has counted it.
            return
        topics = publication.batch.topics
        step = -(-len(topics) // _SAMPLED)
        counts = self._counts
        for topic in topics[::step]:
            counts[topic] += step
        if len(counts) > _KEPT:
            self.complete = False
            self._counts = Counter(dict(counts.most_common(_KEPT // 2)))

    def _look(self) -> None:
        left = self._asked + self._lease - self._node.clock.monotonic()
        if left > 0:
            self._node.timers.after(left, self._look)
        else:
            self._node.remove_observer(self)
            self._watching = False
            self._counts = Counter()
