"""Finds the options of a session's subscriptions that match a topic (MQTT 5)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.routing.option_semantics import is_no_local, is_retain_as_published
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topic_trie import FilterTrie

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.state.session import SubscriptionState

_CACHED_TOPICS: Final = 1024
"""Maximum number of topics whose subscription identifiers are cached."""


class _Asked(NamedTuple):
    """The options of one subscription."""

    qos: int
    options: int
    identifier: int
    """Subscription identifier; 0: none."""


class SubscriptionOptionIndex:
    """The options of the subscriptions of one session.

    A session has one only if a subscription has an identifier or Retain As Published: without them
    a connection costs less memory.
    """

    __slots__ = ("_filters", "_known", "_known_of_own", "_missing", "identified")

    def __init__(self, subscriptions: Mapping[str, SubscriptionState]) -> None:
        self._filters: FilterTrie[_Asked] = FilterTrie()
        self.identified: set[str] = set()
        """Filters of the subscriptions with an identifier."""
        self._missing = deque(subscriptions)
        """Filters that are not in the index yet."""
        self._known: dict[bytes, tuple[int, ...]] = {}
        self._known_of_own: dict[bytes, tuple[int, ...]] = {}

    @staticmethod
    def needed(held: SubscriptionState) -> bool:
        """Return whether a subscription has options that affect its messages."""
        return bool(held.identifier) or is_retain_as_published(held.options)

    def complete(self, subscriptions: Mapping[str, SubscriptionState], most: int) -> bool:
        """Add at most ``most`` missing filters; return whether some are still missing."""
        for _ in range(min(most, len(self._missing))):
            topic_filter = self._missing.popleft()
            self.set(topic_filter, subscriptions.get(topic_filter))
        return bool(self._missing)

    def set(self, topic_filter: str, held: SubscriptionState | None) -> None:
        """Set the options of a subscription; None, or one that has ended: remove it."""
        self._known.clear()
        self._known_of_own.clear()
        self.identified.discard(topic_filter)
        self._filters.remove(topic_filter, topic_filter)
        if held is None or not held.active:
            return
        identifier = 0 if topic_filter.startswith(SHARE) else held.identifier
        if identifier:
            self.identified.add(topic_filter)
        asked = _Asked(held.qos, held.options, identifier)
        self._filters.insert(topic_filter, topic_filter, asked)

    def is_as_published(self, topic: bytes) -> bool:
        """Return whether the matching subscription with the highest QoS has Retain As Published."""
        asked = [
            (one.qos, is_retain_as_published(one.options))
            for one in self._filters.match(topic.decode())
        ]
        return max(asked, default=(0, False))[1]

    def identifiers(self, topic: bytes, *, own: bool) -> tuple[int, ...]:
        """Return the identifiers of all subscriptions that match a topic [MQTT-3.3.4-3].

        An identifier of several subscriptions is repeated for each (MQTT 5, 3.3.4). ``own``:
        without subscriptions that have No Local [MQTT-3.8.3-3].
        """
        if not self.identified:
            return ()
        known = self._known_of_own if own else self._known
        found = known.get(topic)
        if found is None:
            if len(known) >= _CACHED_TOPICS:
                known.clear()
            numbers = [
                one.identifier
                for one in self._filters.match(topic.decode())
                if one.identifier and not (own and is_no_local(one.options))
            ]
            found = known[topic] = tuple(sorted(numbers))
        return found
