"""The fold of the keys of topics, and of erasures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.positions import Position, from_runs, to_runs

_AT_ONCE = 32 * 1024
"""Characters of topics from which an event of a checkpoint is full."""
_NEVER_MS = 1 << 53
_ENTRY = 40
"""Characters that a key counts for besides the name of its topic."""


class TopicKey(NamedTuple):
    """A key of a topic."""

    number: int
    since: Position
    """Position of the event that names it."""
    begins_ms: int = 0
    ends_ms: int = 0
    """The period for which it is used; the end is 0 if there is none."""


class KeysOfTopic(NamedTuple):
    """The keys of a topic that exist."""

    changed: Position
    """Position of the event that changed them last."""
    keys: tuple[TopicKey, ...]
    """In the order of the ends of their periods: the last one seals what is published. The others
    also seal what another log published in their periods."""

    def encode(self) -> bytes:
        """Return them as the projections store them."""
        if len(self.keys) == 1 and self.keys[0] == (self.keys[0].number, self.changed, 0, 0):
            return b"%d" % self.keys[0].number
        return orjson.dumps([[*key] for key in self.keys])

    @classmethod
    def decode(cls, body: bytes, version: Position) -> KeysOfTopic:
        """Return the keys that the projections store. Raises ValueError or TypeError."""
        stored = orjson.loads(body)
        if isinstance(stored, int):
            return cls(version, (TopicKey(stored, version),))
        return cls(version, tuple(TopicKey(*key) for key in stored))


def _end(key: TopicKey) -> tuple[int, int]:
    return key.ends_ms or _NEVER_MS, key.number


class TopicKeys:
    """The keys of topics in a log.

    Every key that was assigned and does not belong to a topic any more is erased.
    """

    __slots__ = ("by_topic", "count", "dirty", "erasure", "last", "pending")

    def __init__(self) -> None:
        self.by_topic: dict[str, KeysOfTopic] = {}
        """No topic without a key is in it."""
        self.count = 0
        """Number of keys."""
        self.last = 0
        """The highest number that a key has, or had."""
        self.erasure = 0
        """The number of the last erasure; 0: there was none."""
        self.pending: list[int] = []
        """The keys that it destroys, while it is not completed."""
        self.dirty: dict[str, Position] | None = None
        """Changed topics, with the position of their previous change, 0 for none; None while
        changes are not tracked."""

    def fold(self, event: Any, at: Position) -> None:
        """Apply an event."""
        if isinstance(event, TopicsKeyed):
            period = event.begins_ms, event.ends_ms
            for topic, number in zip(event.topics, from_runs(event.keys), strict=True):
                self._add(topic, TopicKey(number, at, *period), at)
        elif isinstance(event, KeysSnapshot):
            self._repeat(event, at)
            self.last = max(self.last, event.highest)
            self.erasure, self.pending = event.erasure, from_runs(event.pending)
        elif isinstance(event, ErasureRequested):
            keys = from_runs(event.keys)
            for topic, number in zip(event.topics, keys, strict=True):
                held = self.of(topic)
                self._set(topic, tuple(key for key in held if key.number != number), at)
            self.erasure, self.pending = event.erasure, keys
        elif isinstance(event, Erased):
            self.pending = []

    def _repeat(self, event: KeysSnapshot, at: Position) -> None:
        keys = from_runs(event.keys)
        begins, ends = (
            from_runs(times) if times else [0] * len(keys)
            for times in (event.begins_ms, event.ends_ms)
        )
        for topic, number, begins_ms, ends_ms in zip(event.topics, keys, begins, ends, strict=True):
            if all(key.number != number for key in self.of(topic)):
                self._add(topic, TopicKey(number, at, begins_ms, ends_ms), at)

    def _add(self, topic: str, key: TopicKey, at: Position) -> None:
        """Add a key, or change the period of one; the state may be newer than the event."""
        others = [other for other in self.of(topic) if other.number != key.number]
        earlier = [other for other in self.of(topic) if other.number == key.number]
        if earlier:
            key = key._replace(since=earlier[0].since, begins_ms=earlier[0].begins_ms)
        self._set(topic, tuple(sorted([*others, key], key=_end)), at)
        self.last = max(self.last, key.number)

    def _set(self, topic: str, keys: tuple[TopicKey, ...], at: Position) -> None:
        held = self.by_topic.get(topic)
        if self.dirty is not None:
            self.dirty.setdefault(topic, 0 if held is None else held.changed)
        self.count += len(keys) - (0 if held is None else len(held.keys))
        if keys:
            self.by_topic[topic] = KeysOfTopic(at, keys)
        else:
            self.by_topic.pop(topic, None)

    def of(self, topic: str) -> tuple[TopicKey, ...]:
        """Return the keys of a topic, the oldest first; empty: it has none."""
        held = self.by_topic.get(topic)
        return () if held is None else held.keys

    def number_of(self, topic: str) -> int:
        """Return the number of the newest key of a topic; 0: it has none."""
        held = self.by_topic.get(topic)
        return 0 if held is None else held.keys[-1].number

    def snapshot(self) -> Iterator[KeysSnapshot]:
        """Yield the events that repeat the keys; none if there was never one.

        Keys may change between two of them: each repeats what exists when it is asked for.
        """
        if not self.last:
            return
        part: list[tuple[str, TopicKey]] = []
        size = 0
        for topic in [*self.by_topic]:
            repeated: set[int] = set()
            while remaining := [key for key in self.of(topic) if key.number not in repeated]:
                if size > _AT_ONCE:
                    yield self._repeated(part)
                    part, size = [], 0
                    continue
                part.append((topic, remaining[0]))
                size += len(topic) + _ENTRY
                repeated.add(remaining[0].number)
        yield self._repeated(part)

    def _repeated(self, part: Sequence[tuple[str, TopicKey]]) -> KeysSnapshot:
        topics, keys = [topic for topic, _ in part], [key for _, key in part]
        event = KeysSnapshot(
            topics,
            to_runs([key.number for key in keys]),
            self.last,
            self.erasure,
            to_runs(self.pending),
        )
        if any(key.ends_ms for key in keys):
            event.begins_ms = to_runs([key.begins_ms for key in keys])
            event.ends_ms = to_runs([key.ends_ms for key in keys])
        return event

    def mark(self) -> list[Any]:
        """Return what the mark of the projections has of them; empty: there was never a key."""
        return [self.last, self.erasure, self.pending] if self.last else []

    def load_mark(self, mark: Iterable[Any]) -> None:
        """Take what :meth:`mark` returned."""
        for highest, erasure, pending in [tuple(mark)] if mark else ():
            self.last, self.erasure, self.pending = highest, erasure, pending

    def load(self, topic: str, body: bytes, version: Position) -> None:
        """Load the keys of a topic from the projections; they may be newer than their mark."""
        self._set(topic, KeysOfTopic.decode(body, version).keys, version)
