"""Counts subscriptions and wildcard patterns by session and owner, for the limits on them."""

from collections import Counter
from typing import TypeVar


class SubscriptionQuota:
    """Subscriptions of each owner since the start; earlier subscriptions have no owner."""

    __slots__ = ("_held", "_sessions")

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._sessions: dict[str, tuple[str, int]] = {}
        """Session -> its owner, and the number of its subscriptions."""

    def allows(self, owner: str, total: int, most: int) -> bool:
        """Return whether an owner may have one more.

        ``total`` is the number of subscriptions of all sessions, ``most`` their limit (0:
        unlimited).
        """
        return not most or self._held[owner] < most - total

    def begun(self, session: str, owner: str) -> None:
        """Count a subscription that was granted."""
        owner, count = self._sessions.get(session, (owner, 0))
        self._sessions[session] = owner, count + 1
        self._held[owner] += 1

    def ended(self, session: str) -> None:
        """Stop counting a subscription; one that was not counted is ignored."""
        counted = self._sessions.get(session)
        if counted is not None:
            owner, count = counted
            if count > 1:
                self._sessions[session] = owner, count - 1
            else:
                del self._sessions[session]
            _subtract(self._held, owner, 1)

    def forget(self, session: str) -> None:
        """Stop counting the subscriptions of a session that ended."""
        owner, count = self._sessions.pop(session, ("", 0))
        if count:
            _subtract(self._held, owner, count)


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
        """Filters with each pattern, of each session that is not frozen."""

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
            _subtract(self._all, pattern)
            if pattern not in self._all and pattern in self._owners:
                _subtract(self._brought, self._owners.pop(pattern))

    def begun(self, session: str, topic_filter: str) -> None:
        """Count a filter for a session."""
        if pattern := pattern_of(topic_filter):
            self._sessions.setdefault(session, Counter())[pattern] += 1

    def ended(self, session: str, topic_filter: str) -> None:
        """Stop counting a filter for a session."""
        patterns = self._sessions.get(session)
        if patterns is not None and (pattern := pattern_of(topic_filter)):
            _subtract(patterns, pattern)
            if not patterns:
                del self._sessions[session]

    def forget(self, session: str) -> None:
        """Stop counting for a session that ended or is frozen."""
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
        patterns = self._sessions.get(session, ())
        if not pattern or pattern in patterns or pattern in fresh:
            return True
        if most and len(patterns) + len(fresh) >= most:
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


def _subtract(counts: Counter[_Key], key: _Key, count: int = 1) -> None:
    counts[key] -= count
    if counts[key] <= 0:
        del counts[key]
