"""Limits on subscriptions per session, and on levels of topics and topic filters."""

from __future__ import annotations


class TopicLimits:
    """Limits on a single client's additions to the subscription index; 0 disables one."""

    __slots__ = (
        "_levels",
        "_subscriptions",
        "_wildcards",
        "patterns",
        "patterns_in_all",
        "subscriptions_in_all",
    )

    def __init__(
        self,
        subscriptions: int,
        levels: int,
        wildcards: int,
        patterns: int = 0,
        patterns_in_all: int = 0,
        subscriptions_in_all: int = 0,
    ) -> None:
        self.patterns = patterns
        """Wildcard patterns of one session, see ``actors.routing.wildcard_patterns``."""
        self.patterns_in_all = patterns_in_all
        """Wildcard patterns of all sessions."""
        self.subscriptions_in_all = subscriptions_in_all
        """Subscriptions of all sessions."""
        self._subscriptions = subscriptions
        self._levels = levels
        self._wildcards = wildcards

    def refuses_filter(self, topic_filter: str, held: int, *, new: bool) -> str | None:
        """Return why a session with ``held`` subscriptions may not have this one, or None.

        ``new``: the session does not have this subscription yet.
        """
        if self._levels and topic_filter.count("/") >= self._levels:
            return "topic_levels"
        # A wildcard is a whole level, so each of these characters is one [MQTT-4.7.1-2/3].
        if self._wildcards and topic_filter.count("+") + topic_filter.count("#") > self._wildcards:
            return "wildcards"
        if new and self._subscriptions and held >= self._subscriptions:
            return "subscriptions"
        return None

    def refuses_topic(self, topic: bytes) -> str | None:
        """Return why publishing to a topic is refused, or None."""
        if self._levels and topic.count(b"/") >= self._levels:
            return "topic_levels"
        return None
