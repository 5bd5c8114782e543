"""Which messages are due to a destination, and which of them it may have."""

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson

from protocol.mqtt.topics import matches

LONG = 512
"""Characters from which on a text is not kept for the next message: a topic may have 65,535."""
_KEPT = 8192

Value = TypeVar("Value")


class TextCache(dict[str, Value]):
    """What follows from topics and other texts, computed once for those that come again."""

    def __init__(self, compute: Callable[[str], Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, text: str) -> Value:
        """Compute a value, and keep it unless the text is long."""
        if len(self) >= _KEPT:
            self.clear()
        value = self._compute(text)
        if len(text) < LONG:
            self[text] = value
        return value


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
        self._permitted = permitted
        self._due = TextCache(lambda topic: any(matches(each, topic) for each in filters))

    def is_due(self, topic: str) -> bool:
        """Return whether messages on a topic are due."""
        return self._due[topic]

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
