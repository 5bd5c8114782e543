"""Counts subscriptions by owner, so that no owner can use up the limit of all sessions.

The *owner* of a session's subscriptions is the user that subscribed first, or the address of a
client without a user. A new subscription is refused if its owner already has as many as remain for
all: so the first owner that takes all it can gets half of the limit, the next one half of the rest.
"""

from __future__ import annotations

from collections import Counter


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
            self._take(owner, 1)

    def forget(self, session: str) -> None:
        """Stop counting the subscriptions of a session that ended."""
        owner, count = self._sessions.pop(session, ("", 0))
        if count:
            self._take(owner, count)

    def _take(self, owner: str, count: int) -> None:
        self._held[owner] -= count
        if self._held[owner] <= 0:
            del self._held[owner]
