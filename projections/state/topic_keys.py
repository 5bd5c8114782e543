"""The fold of the keys of topics, and of erasures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.positions import from_runs, to_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eventstore.format.positions import Position

_AT_ONCE = 64 * 1024
"""Characters of topics from which an event of a checkpoint is full."""
_ENTRY = 8
"""Characters that a topic counts for besides its name."""


class TopicKey(NamedTuple):
    """The key of a topic."""

    number: int
    since: Position
    """Position of the event that names it."""


class TopicKeys:
    """The keys of topics in a log.

    Every key that was assigned and does not belong to a topic any more is erased.
    """

    __slots__ = ("by_topic", "dirty", "erasure", "last", "pending")

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicKey] = {}
        self.last = 0
        """The highest number that a key has, or had."""
        self.erasure = 0
        """The number of the last erasure; 0: there was none."""
        self.pending: list[int] = []
        """The keys that it destroys, while it is not completed."""
        self.dirty: dict[str, Position] | None = None
        """Changed topics, with the position of their previous key, 0 for none; None while changes
        are not tracked."""

    def fold(self, event: Any, at: Position) -> None:
        """Apply an event."""
        if isinstance(event, TopicsKeyed):
            self._add(event.topics, from_runs(event.keys), at)
        elif isinstance(event, KeysSnapshot):
            pairs = zip(event.topics, from_runs(event.keys), strict=True)
            new = {topic: number for topic, number in pairs if topic not in self.by_topic}
            self._add([*new], [*new.values()], at)
            self.last = max(self.last, event.highest)
            self.erasure, self.pending = event.erasure, from_runs(event.pending)
        elif isinstance(event, ErasureRequested):
            keys = from_runs(event.keys)
            for topic, number in zip(event.topics, keys, strict=True):
                held = self.by_topic.get(topic)
                if held is not None and held.number == number:
                    self._touch(topic)
                    del self.by_topic[topic]
            self.erasure, self.pending = event.erasure, keys
        elif isinstance(event, Erased):
            self.pending = []

    def _add(self, topics: Sequence[str], keys: Sequence[int], at: Position) -> None:
        for topic, number in zip(topics, keys, strict=True):
            self._touch(topic)
            self.by_topic[topic] = TopicKey(number, at)
            self.last = max(self.last, number)

    def _touch(self, topic: str) -> None:
        if self.dirty is not None:
            held = self.by_topic.get(topic)
            self.dirty.setdefault(topic, 0 if held is None else held.since)

    def number_of(self, topic: str) -> int:
        """Return the number of the key of a topic; 0: it has none."""
        held = self.by_topic.get(topic)
        return 0 if held is None else held.number

    def snapshot(self) -> Iterator[KeysSnapshot]:
        """Yield the events that repeat the keys; none if there was never one."""
        if not self.last:
            return
        part: list[str] = []
        size = 0
        for topic in [*self.by_topic]:
            if size > _AT_ONCE:
                yield self._repeated(part)
                part, size = [], 0
            part.append(topic)
            size += len(topic) + _ENTRY
        yield self._repeated(part)

    def _repeated(self, topics: list[str]) -> KeysSnapshot:
        keys = to_runs([self.by_topic[topic].number for topic in topics])
        return KeysSnapshot(topics, keys, self.last, self.erasure, to_runs(self.pending))

    def mark(self) -> list[Any]:
        """Return what the mark of the projections has of them; empty: there was never a key."""
        return [self.last, self.erasure, self.pending] if self.last else []

    def load_mark(self, mark: Iterable[Any]) -> None:
        """Take what :meth:`mark` returned."""
        for last, erasure, pending in [tuple(mark)] if mark else ():
            self.last, self.erasure, self.pending = last, erasure, pending

    def load(self, topic: str, number: int, since: Position) -> None:
        """Load the key of a topic from the projections; it may be newer than their mark."""
        self.by_topic[topic] = TopicKey(number, since)
