"""Which messages are due to a destination, and which of them it may have."""

import hashlib
from collections.abc import Callable, Sequence

import orjson

from protocol.mqtt.topics import matches

_KNOWN_TOPICS = 4096
LONG = 512
"""Characters from which on a text is not kept for the next message: a topic may have 65,535."""


class Selection:
    """The topics that match the filters of a destination."""

    def __init__(
        self,
        filters: Sequence[str],
        permitted: Callable[[str], bool] | None = None,
        own: str | None = None,
    ) -> None:
        """``permitted`` returns whether the user of the destination may read a topic.

        Messages that the client ``own`` publishes came from the destination and are not due.
        """
        self.own = own
        self._filters = tuple(filters)
        self._permitted = permitted
        self._known: dict[str, bool] = {}

    def is_due(self, topic: str) -> bool:
        """Return whether messages on a topic are due."""
        due = self._known.get(topic)
        if due is None:
            if len(self._known) >= _KNOWN_TOPICS:
                self._known.clear()
            due = any(matches(each, topic) for each in self._filters)
            if len(topic) < LONG:
                self._known[topic] = due
        return due

    @property
    def is_restricted(self) -> bool:
        """Whether the destination may not have all messages that are due."""
        return self._permitted is not None

    def may_have(self, topic: str) -> bool:
        """Return whether the destination may have messages on a topic that is due."""
        return self._permitted is None or self._permitted(topic)


def selection_digest(kind: str, filters: Sequence[str], user: str | None = None) -> str:
    """Return the digest of the settings that determine which messages are due."""
    text = orjson.dumps([kind, sorted(filters), user])
    return hashlib.sha256(text).hexdigest()[:16]
