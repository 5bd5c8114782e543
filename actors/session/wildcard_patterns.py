"""How many wildcard patterns there are: what matching a topic may cost.

The *pattern* of a topic filter is where its ``+`` levels are. Matching a topic follows, at each
level, the level's name and ``+``: at most one way for each pattern that some filter has, however
many filters there are. So a bound on the patterns of a session, and of all sessions, bounds the
cost of every match. 8,192 filters such as ``a/+/a/...`` in all combinations have 8,192 patterns;
a million filters of the form ``site/+/sensor/42`` have one.
"""

from __future__ import annotations

from collections import Counter

_FEW = 32
"""Wildcards that are looked for one by one."""


def pattern_of(topic_filter: str) -> int:
    """Return the pattern of a topic filter: a bit for each level that is ``+``; 0 for none."""
    count = topic_filter.count("+")
    if count <= _FEW:
        pattern, at = 0, -1
        for _ in range(count):
            at = topic_filter.index("+", at + 1)
            pattern |= 1 << topic_filter.count("/", 0, at)
        return pattern
    return sum(1 << at for at, level in enumerate(topic_filter.split("/")) if level == "+")


class Patterns:
    """Counts the wildcard patterns of the subscription index; 0 as a bound is none."""

    __slots__ = ("_all", "_sessions")

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        """Filters in the index with each pattern."""
        self._sessions: dict[str, Counter[int]] = {}
        """The same of each session that is not passive."""

    def __len__(self) -> int:
        """Return the number of different patterns in the index."""
        return len(self._all)

    def of(self, session: str) -> int:
        """Return how many different patterns a session has that is not passive."""
        return len(self._sessions.get(session, ()))

    def filed(self, topic_filter: str) -> None:
        """Count a filter that was put into the index."""
        if pattern := pattern_of(topic_filter):
            self._all[pattern] += 1

    def removed(self, topic_filter: str) -> None:
        """Count a filter out that was taken out of the index."""
        if pattern := pattern_of(topic_filter):
            _take(self._all, pattern)

    def begun(self, session: str, topic_filter: str) -> None:
        """Count a filter for a session."""
        if pattern := pattern_of(topic_filter):
            self._sessions.setdefault(session, Counter())[pattern] += 1

    def ended(self, session: str, topic_filter: str) -> None:
        """Count a filter out for a session."""
        held = self._sessions.get(session)
        if held is not None and (pattern := pattern_of(topic_filter)):
            _take(held, pattern)
            if not held:
                del self._sessions[session]

    def forget(self, session: str) -> None:
        """Count nothing more for a session: it ended or is passive."""
        self._sessions.pop(session, None)

    def allows(
        self, session: str, topic_filter: str, fresh: set[int], most: int, most_in_all: int
    ) -> bool:
        """Return whether a session may have a filter; a new pattern is added to ``fresh``.

        ``fresh`` are new patterns of the session that are granted and not counted yet. ``most``
        bounds the patterns of the session, ``most_in_all`` those of all sessions.
        """
        pattern = pattern_of(topic_filter)
        held = self._sessions.get(session, ())
        if not pattern or pattern in held or pattern in fresh:
            return True
        if most and len(held) + len(fresh) >= most:
            return False
        if most_in_all and pattern not in self._all and len(self._all) >= most_in_all:
            return False
        fresh.add(pattern)
        return True


def _take(counts: Counter[int], pattern: int) -> None:
    counts[pattern] -= 1
    if counts[pattern] <= 0:
        del counts[pattern]
