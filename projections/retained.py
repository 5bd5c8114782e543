"""The retained index as a fold: the last retained message of every topic.

A retained message takes effect where its MessagePublished stands (QoS 0 and 1) or with the
Released that names it (QoS 2). An empty payload clears the topic [MQTT-3.3.1-10].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.events import (
    Event,
    MessagePublished,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.positions import Position, from_runs
from protocol.trie import TopicTrie

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RetainedMessage(NamedTuple):
    """The retained message of one topic."""

    topic: str
    payload: bytes
    qos: int
    ref: Position
    """Position of the publication."""


class RetainedIndex:
    """The retained messages, found by topic or by filter."""

    __slots__ = ("_count", "_pending", "_size", "_topics")

    def __init__(self) -> None:
        self._topics: TopicTrie[RetainedMessage] = TopicTrie()
        self._pending: dict[str, dict[Position, RetainedMessage]] = {}
        self._count = 0
        self._size = 0

    def __len__(self) -> int:
        """Return the number of topics that have a retained message."""
        return self._count

    @property
    def size(self) -> int:
        """Payload bytes of all retained messages."""
        return self._size

    def get(self, topic: str) -> RetainedMessage | None:
        """Return the retained message of a topic."""
        return self._topics.get(topic)

    def all(self) -> list[RetainedMessage]:
        """Return all retained messages, oldest first."""
        return sorted(self._topics.values(), key=_by_position)

    def match(self, topic_filter: str) -> list[RetainedMessage]:
        """Return the retained messages that a filter matches, oldest first."""
        return sorted(self._topics.match(topic_filter), key=_by_position)

    def published(self, event: MessagePublished, at: Position, payloads: Sequence[bytes]) -> None:
        """Apply retained publications; ``payloads`` are those of the event's messages."""
        topics: Iterable[str] = (
            map(event.topics.__getitem__, event.which)
            if event.which
            else (event.topics[0] for _ in payloads)
        )
        later = event.qos == 2 and not event.will
        for ref, (topic, payload) in enumerate(zip(topics, payloads, strict=True), at):
            message = RetainedMessage(topic, payload, event.qos, ref)
            if later:
                self._pending.setdefault(event.session, {})[ref] = message
            else:
                self._set(message)

    def other(self, event: Event) -> None:
        """Apply an event that is not a publication but may complete or discard one."""
        if not self._pending:
            return
        if isinstance(event, Released):
            pending = self._pending.get(event.session)
            if pending is not None:
                for ref in from_runs(event.refs):
                    message = pending.pop(ref, None)
                    if message is not None:
                        self._set(message)
        elif isinstance(event, SessionExpired) or (
            isinstance(event, SessionOpened) and not event.resumed
        ):
            self._pending.pop(event.session, None)

    def session_ended(self, event: SessionClosed) -> None:
        """Discard what a clean session had not released when it ended."""
        self._pending.pop(event.session, None)

    def _set(self, message: RetainedMessage) -> None:
        before = self._topics.get(message.topic)
        if before is not None:
            self._count -= 1
            self._size -= len(before.payload)
        if message.payload:
            self._topics.set(message.topic, message)
            self._count += 1
            self._size += len(message.payload)
        elif before is not None:
            self._topics.discard(message.topic)


def _by_position(message: RetainedMessage) -> Position:
    return message.ref
