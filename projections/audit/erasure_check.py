"""The audit of sealed contents: keys are named once, and erasures are requested and completed.

A scan notes the events of keys and erasures; the notes of the whole log are checked together. While
it scans, it compares each message with the keys that it has seen: what is published on a topic with
a key is sealed under its newest one, in the period of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventstore.display import name as name_shown
from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.events import LOG_SESSION
from eventstore.format.name_entries import parts_of, place_of, topic_shown
from eventstore.format.positions import from_runs
from eventstore.format.sealing import SealedBytes
from projections.audit.chain_check import UNSEALED, ChainBreak
from projections.audit.log_outline import ErasedSpan
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
_LATE_MS = 60_000
"""Milliseconds by which a record may be later than what was decided for it."""
_NEVER_MS = 1 << 53


def shown(topic: str) -> str:
    """Return a topic, or a name with a token, for a message."""
    return name_shown(topic_shown(topic))


class KeyNotes:
    """Notes the events of keys in a piece of a log, and messages that are not sealed."""

    def __init__(self, note: Callable[[Position, str, dict[str, Any]], None], about: str) -> None:
        self._note = note
        self._about = about
        self._keys: dict[str, tuple[int, int]] = {}
        """The end of the newest period of each topic that this piece names, and its key."""

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
                values |= {"erasure": event.erasure, "before_ms": event.before_ms}
                for topic, key in zip(event.topics, keys, strict=True):
                    if self._keys.get(topic, (0, 0))[1] == key:
                        del self._keys[topic]
            else:
                ends = self._ends(event, len(keys))
                values["ends_ms"] = ends
                for topic, key, ends_ms in zip(event.topics, keys, ends, strict=True):
                    newest = ends_ms or _NEVER_MS, key
                    self._keys[topic] = max(self._keys.get(topic, (0, 0)), newest)
            if isinstance(event, KeysSnapshot):
                values |= {"erasure": event.erasure, "last": event.highest}
                values["pending"] = from_runs(event.pending)
        self._note(at, self._about, values)

    @staticmethod
    def _ends(event: TopicsKeyed | KeysSnapshot, count: int) -> list[int]:
        """Return the end of the period of each key; raises IndexError for columns that differ."""
        if isinstance(event, TopicsKeyed):
            ends, others = [event.ends_ms] * count, len(event.checks)
        else:
            ends, others = from_runs(event.ends_ms), len(from_runs(event.begins_ms))
            if not ends and not others:
                return [0] * count
        if not len(ends) == others == count:
            raise IndexError("columns of different lengths")
        return ends

    def check(self, event: MessagePublished, at: Position, record: Record) -> None:
        """Check that an event's messages are sealed under the keys of their topics.

        Those of another log may be sealed under an older key, that of their publication.
        """
        if not any(topic in self._keys for topic in event.topics):
            return
        is_copy = event.session.startswith(LOG_SESSION)
        for number, payload in enumerate(record.payloads(event)):
            topic = event.topics[event.which[number] if event.which else 0]
            ends_ms, topic_key = self._keys.get(topic, (0, 0))
            key = payload.key if isinstance(payload, SealedBytes) else None
            if not payload or not topic_key:
                continue
            if is_copy and key is not None:
                continue
            if key != topic_key:
                what = "is not sealed" if key is None else f"is sealed under key {key}"
                text = f"a message on {shown(topic)} {what}, but its topic has key {topic_key}"
            elif 0 < ends_ms < record.steady_ms - _LATE_MS:
                text = f"a message on {shown(topic)} is sealed under key {key}, whose period ended"
            else:
                continue
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


def erased_spans(notes: Iterable[LogNote]) -> dict[str, list[ErasedSpan]]:
    """Return what was erased of each topic or token; the notes are in the order of the log.

    A key that only a checkpoint names sealed what was published before, at unknown positions; and
    so did one of a period that was over when it was named, for messages of another log.
    """
    begins: dict[str, dict[int, tuple[Position, int]]] = {}
    """The keys of each topic, where each was named, and the end of its period."""
    spans: dict[str, list[ErasedSpan]] = {}
    for note in notes:
        pairs = [*zip(note.values.get("topics", ()), note.values.get("keys", ()), strict=True)]
        if note.values["e"] != "ErasureRequested":
            ends = note.values.get("ends_ms", ())
            for (topic, key), ends_ms in zip(pairs, ends, strict=True):
                named = begins.setdefault(topic, {})
                named[key] = named.get(key, (note.at,))[0], ends_ms or _NEVER_MS
            continue
        for topic, key in pairs:
            named = begins.get(topic, {})
            begin, ends_ms = named.get(key, (note.at, 0))
            later = [at for at, other_ms in named.values() if other_ms > ends_ms]
            end = min([note.at, *later])
            span = ErasedSpan(note.at, min(begin, end), end)
            entry = parts_of(topic)
            place = topic if entry is None else place_of(entry.token)
            spans.setdefault(place, []).append(span)
    return spans


class _Keys:
    """The keys of a log, from its first event about them on."""

    def __init__(self) -> None:
        self.begun: LogNote | None = None
        """The request of an erasure that is not completed."""
        self.erasure: int | None = None
        """The number of the last erasure; None: not known yet."""
        self._pending = 0
        self._last = 0
        self._is_cut = False
        """Whether the log begins with a checkpoint, so that further keys may come with it."""
        self._by_topic: dict[str, dict[int, int]] = {}
        """The keys of each topic, in order, and the ends of their periods; 0: never."""

    def take(self, note: LogNote) -> Iterator[str]:
        """Yield what is wrong with an event, and apply it."""
        values = note.values
        kind = values["e"]
        pairs = [*zip(values.get("topics", ()), values.get("keys", ()), strict=True)]
        if kind == "TopicsKeyed":
            yield from self._named(pairs, values)
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

    def _named(self, pairs: list[tuple[str, int]], values: dict[str, Any]) -> Iterator[str]:
        self.erasure = self.erasure or 0
        for (topic, key), ends_ms in zip(pairs, values["ends_ms"], strict=True):
            held = self._by_topic.setdefault(topic, {})
            newest = max(held, key=lambda key: held[key] or _NEVER_MS, default=0)
            if key in held:
                is_over = 0 < ends_ms <= values["time_ms"]  # then messages of another log follow
                if not (0 < held[key] < ends_ms or (is_over and held[key] == ends_ms)):
                    yield f"key {key} of {shown(topic)} is named again, but for no longer period"
            elif key <= self._last:
                yield f"key {key} is named for {shown(topic)}, but was named before"
            elif 0 < ends_ms <= values["time_ms"]:  # for messages of another log
                if ends_ms in held.values():
                    yield f"{shown(topic)} gets another key for the period of one that it has"
            elif newest and not held[newest]:
                yield f"{shown(topic)} gets a second key, but its first one was not erased"
            elif newest and values["time_ms"] < held[newest]:
                yield f"{shown(topic)} gets another key in the period of key {newest}"
            held[key] = ends_ms
            self._last = max(self._last, key)

    def _repeated(self, values: dict[str, Any], pairs: list[tuple[str, int]]) -> Iterator[str]:
        if self.erasure is None:  # the log begins with this checkpoint
            self._pending, self._is_cut = len(values["pending"]), True
        elif values["erasure"] != self.erasure or values["last"] != self._last:
            yield "a checkpoint repeats other keys than there are"
        for (topic, key), ends_ms in zip(pairs, values["ends_ms"], strict=True):
            held = self._by_topic.setdefault(topic, {})
            if held and held.get(key, ends_ms if self._is_cut else None) != ends_ms:
                yield f"a checkpoint repeats another key of {shown(topic)}"
            held[key] = ends_ms
        self._last, self.erasure = max(self._last, values["last"]), values["erasure"]

    def _requested(self, note: LogNote, pairs: list[tuple[str, int]]) -> Iterator[str]:
        number, before_ms = note.values["erasure"], note.values["before_ms"]
        if self.begun is not None or (self._pending and self.erasure is not None):
            yield f"erasure {number} is requested, but the one before is not completed"
        if self.erasure is not None and number != self.erasure + 1:
            yield f"erasure {number} follows erasure {self.erasure}"
        for topic, key in pairs:
            ends_ms = self._by_topic.get(topic, {}).pop(key, None)
            if ends_ms is not None and before_ms and not 0 < ends_ms <= before_ms:
                yield f"erasure {number} names key {key} of {shown(topic)}, which was in use later"
            elif ends_ms is None and self.erasure is not None:
                yield f"erasure {number} names key {key} of {shown(topic)}, which it does not have"
        self.erasure, self.begun, self._pending = number, note, len(pairs)
