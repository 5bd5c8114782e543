"""Limits on wildcard patterns, which bound the cost of matching a topic.

The *pattern* of a topic filter is the set of its ``+`` levels. Matching a topic follows, at each
level, the level's name and ``+``: at most one path for each pattern in use, however many filters
there are. A bound on the patterns of a session, and of all sessions, therefore bounds the cost of
every match. 8,192 filters such as ``a/+/a/...`` in all combinations have 8,192 patterns;
a million filters of the form ``site/+/sensor/42`` have one.

A single client cannot use up the limit of all sessions: a pattern that is new to the index counts
for the user or address that added it, as long as it is in the index, and none may add more patterns
than remain for the others. The first that adds as many as it can gets half of the limit, the next
one half of the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

_FEW = 32
"""Maximum number of wildcards that are located one by one."""
_DIGITS = bytes.maketrans(b"\0\1", b"01")


def pattern_of(topic_filter: str) -> int:
    """Return the pattern of a topic filter: a bit for each level that is ``+``; 0 for none."""
    count = topic_filter.count("+")
    if count <= _FEW:
        pattern, at = 0, -1
        for _ in range(count):
            at = topic_filter.index("+", at + 1)
            pattern |= 1 << topic_filter.count("/", 0, at)
        return pattern
    # Digits, not a sum of bits, whose time is quadratic in the number of levels.
    levels = reversed(topic_filter.split("/"))
    return int(bytes(map("+".__eq__, levels)).translate(_DIGITS), 2)


class Patterns:
    """Counts the wildcard patterns of the subscription index; a limit of 0 is unlimited."""

    __slots__ = ("_all", "_brought", "_owners", "_sessions")

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        """Filters in the index with each pattern; 0: granted, and about to be added."""
        self._owners: dict[int, str] = {}
        """Pattern -> the user or address that added it; unknown after a restart."""
        self._brought: Counter[str] = Counter()
        """Number of patterns added by each of them."""
        self._sessions: dict[str, Counter[int]] = {}
        """Filters with each pattern, of each session that is not passive."""

    def __len__(self) -> int:
        """Return the number of different patterns in the index."""
        return len(self._all)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not use ``__len__`` for this."""
        return len(self) > 0

    def added(self, topic_filter: str) -> None:
        """Count a filter that was added to the index."""
        if pattern := pattern_of(topic_filter):
            self._all[pattern] += 1

    def removed(self, topic_filter: str) -> None:
        """Stop counting a filter that was removed from the index."""
        if pattern := pattern_of(topic_filter):
            _take(self._all, pattern)
            if pattern not in self._all and pattern in self._owners:
                _take(self._brought, self._owners.pop(pattern))

    def begun(self, session: str, topic_filter: str) -> None:
        """Count a filter for a session."""
        if pattern := pattern_of(topic_filter):
            self._sessions.setdefault(session, Counter())[pattern] += 1

    def ended(self, session: str, topic_filter: str) -> None:
        """Stop counting a filter for a session."""
        held = self._sessions.get(session)
        if held is not None and (pattern := pattern_of(topic_filter)):
            _take(held, pattern)
            if not held:
                del self._sessions[session]

    def forget(self, session: str) -> None:
        """Stop counting for a session that ended or is passive."""
        self._sessions.pop(session, None)

    def allows(
        self,
        session: str,
        owner: str,
        topic_filter: str,
        fresh: set[int],
        most: int,
        most_in_all: int,
    ) -> bool:
        """Return whether a session may have a filter; a new pattern is added to ``fresh``.

        ``owner`` is the user or address of its client. ``fresh`` are new patterns of the session
        that are granted and not counted yet. ``most`` bounds the patterns of the session,
        ``most_in_all`` those of all sessions.
        """
        pattern = pattern_of(topic_filter)
        held = self._sessions.get(session, ())
        if not pattern or pattern in held or pattern in fresh:
            return True
        if most and len(held) + len(fresh) >= most:
            return False
        if pattern not in self._all:
            if most_in_all and self._brought[owner] >= most_in_all - len(self):
                return False
            self._all[pattern] = 0
            self._owners[pattern] = owner
            self._brought[owner] += 1
        fresh.add(pattern)
        return True


_Key = TypeVar("_Key", int, str)


def _take(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
