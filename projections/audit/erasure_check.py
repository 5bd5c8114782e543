"""The audit of sealed contents: keys are named once, and erasures are requested and completed.

A scan notes the events of keys and erasures; the notes of the whole log are checked together. While
it scans, it compares each message with the keys that it has seen: what is published on a topic with
a key is sealed under this key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventstore.display import name as shown
from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.positions import from_runs
from eventstore.format.sealing import SealedBytes
from projections.audit.chain_check import UNSEALED, ChainBreak
from projections.audit.rule_table import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eventstore.format.events import MessagePublished
    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from projections.audit.chain_check import LogNote

    KeyEvent = TopicsKeyed | KeysSnapshot | ErasureRequested | Erased

_DAY_MS = 86_400_000
"""Milliseconds within which an erasure is completed in a log that goes on."""


class KeyNotes:
    """Notes the events of keys in a piece of a log, and messages that are not sealed."""

    def __init__(self, note: Callable[[Position, str, dict[str, Any]], None], about: str) -> None:
        self._note = note
        self._about = about
        self._keys: dict[str, int] = {}
        """The keys of topics that this piece names."""

    def take(self, event: KeyEvent, at: Position, time_ms: int) -> None:
        """Note an event; ``time_ms`` is the time of its record."""
        values: dict[str, Any] = {"e": event.e, "time_ms": time_ms}
        if isinstance(event, Erased):
            values |= {"erasure": event.erasure, "count": event.keys}
        else:
            keys = from_runs(event.keys)
            if len(keys) != len(event.topics):
                raise IndexError("columns of different lengths")
            values |= {"topics": event.topics, "keys": keys}
            if isinstance(event, ErasureRequested):
                values["erasure"] = event.erasure
                for topic in event.topics:
                    self._keys.pop(topic, None)
            else:
                self._keys.update(zip(event.topics, keys, strict=True))
            if isinstance(event, KeysSnapshot):
                values |= {"erasure": event.erasure, "last": event.highest}
                values["pending"] = from_runs(event.pending)
            elif isinstance(event, TopicsKeyed) and len(event.checks) != len(keys):
                raise IndexError("columns of different lengths")
        self._note(at, self._about, values)

    def check(self, event: MessagePublished, at: Position, record: Record) -> None:
        """Check that an event's messages are sealed under the keys of their topics."""
        if not any(topic in self._keys for topic in event.topics):
            return
        for number, payload in enumerate(record.payloads(event)):
            topic = event.topics[event.which[number] if event.which else 0]
            topic_key = self._keys.get(topic)
            key = payload.key if isinstance(payload, SealedBytes) else None
            if payload and topic_key is not None and key != topic_key:
                what = "is not sealed" if key is None else f"is sealed under key {key}"
                text = f"a message on {shown(topic)} {what}, but its topic has key {topic_key}"
                self._note(at + number, UNSEALED, {"what": text})


def erasure_breaks(
    notes: Iterable[LogNote], unsealed: Iterable[LogNote], ends_ms: int
) -> list[ChainBreak]:
    """Return what is wrong with keys and erasures; the notes are in the order of the log.

    ``ends_ms`` is the time of the last record.
    """
    fold = _Keys()
    breaks = [ChainBreak(Rule.EVENT, note.at, note.values["what"]) for note in unsealed]
    for note in notes:
        breaks += [ChainBreak(Rule.EVENT, note.at, what) for what in fold.take(note)]
    begun = fold.begun
    if begun is not None and ends_ms - begun.values["time_ms"] > _DAY_MS:
        what = f"erasure {fold.erasure} was requested more than a day before the end of the log, "
        breaks.append(ChainBreak(Rule.EVENT, begun.at, what + "and is not completed"))
    return breaks


class _Keys:
    """The keys of a log, from its first event about them on."""

    def __init__(self) -> None:
        self.begun: LogNote | None = None
        """The request of an erasure that is not completed."""
        self.erasure: int | None = None
        """The number of the last erasure; None: not known yet."""
        self._pending = 0
        self._last = 0
        self._by_topic: dict[str, int] = {}

    def take(self, note: LogNote) -> Iterator[str]:
        """Yield what is wrong with an event, and apply it."""
        values = note.values
        kind = values["e"]
        pairs = [*zip(values.get("topics", ()), values.get("keys", ()), strict=True)]
        if kind == "TopicsKeyed":
            yield from self._named(pairs)
        elif kind == "KeysSnapshot":
            yield from self._repeated(values, pairs)
        elif kind == "ErasureRequested":
            yield from self._requested(note, pairs)
        else:
            if self.begun is None and self.erasure is not None and not self._pending:
                yield f"erasure {values['erasure']} is completed, but was not requested"
            elif self.erasure not in (None, values["erasure"]) or (
                self._pending and self._pending != values["count"]
            ):
                yield f"erasure {values['erasure']} is completed with other keys than requested"
            self.begun, self._pending = None, 0

    def _named(self, pairs: list[tuple[str, int]]) -> Iterator[str]:
        self.erasure = self.erasure or 0
        for topic, key in pairs:
            if key <= self._last:
                yield f"key {key} is named for {shown(topic)}, but was named before"
            if topic in self._by_topic:
                yield f"{shown(topic)} gets a second key, but its first one was not erased"
            self._by_topic[topic] = key
            self._last = max(self._last, key)

    def _repeated(self, values: dict[str, Any], pairs: list[tuple[str, int]]) -> Iterator[str]:
        if self.erasure is None:  # the log begins with this checkpoint
            self._pending = len(values["pending"])
        elif values["erasure"] != self.erasure or values["last"] != self._last:
            yield "a checkpoint repeats other keys than there are"
        known = self.erasure is not None and self._last > 0
        for topic, key in pairs:
            if known and self._by_topic.get(topic, key) != key:
                yield f"a checkpoint repeats another key of {shown(topic)}"
            self._by_topic[topic] = key
        self._last, self.erasure = max(self._last, values["last"]), values["erasure"]

    def _requested(self, note: LogNote, pairs: list[tuple[str, int]]) -> Iterator[str]:
        number = note.values["erasure"]
        if self.begun is not None or (self._pending and self.erasure is not None):
            yield f"erasure {number} is requested, but the one before is not completed"
        if self.erasure is not None and number != self.erasure + 1:
            yield f"erasure {number} follows erasure {self.erasure}"
        for topic, key in pairs:
            if self._by_topic.pop(topic, None) != key and self.erasure is not None:
                yield f"erasure {number} names key {key} of {shown(topic)}, which it does not have"
        self.erasure, self.begun, self._pending = number, note, len(pairs)
