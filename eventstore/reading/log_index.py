"""Lookups in an index: the records that may concern a session, a topic or a message."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventstore.format.positions import Position, Run, from_runs, position
from eventstore.reading.keys import (
    CHECK_LENGTH,
    CHECKS,
    EFFECT,
    RARE,
    REFERRED,
    STATES,
    TOPIC,
    group_key,
    unpack_sequences,
)
from eventstore.reading.segment import BadIndex, Segment

if TYPE_CHECKING:
    from eventstore.format.records import Record


class SavedState(NamedTuple):
    """The state of a session as of ``bound``: it includes everything before this position."""

    bound: Position
    parts: list[dict[str, Any]] | None
    """None: the session did not exist."""
    denied: list[list[Any]]
    """Denied filters that were not granted since: filter, reason code, position, time."""


class LogIndex:
    """The segments of an index that was verified to belong to the log that is read.

    Every method raises BadIndex when it finds damage.
    """

    def __init__(self, segments: Sequence[Segment], begin: int) -> None:
        """``segments`` are consecutive, or none; the log begins with record ``begin``."""
        self._segments = segments
        head = segments[0].head if segments else None
        self.first = max(begin, head.first) if head else begin
        """Stream sequences of the first and the last indexed record."""
        self.last = segments[-1].head.last if segments else begin - 1
        self.known_before = bool(head and head.heir and 0 <= head.whole <= position(head.first, 0))
        """Whether the last states from before the first segment are known."""

    @property
    def empty(self) -> bool:
        """Whether no record is indexed."""
        return not self._segments

    @property
    def path(self) -> Path | None:
        """The directory of the segments; None: there are none."""
        return self._segments[0].path.parent if self._segments else None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(segment.size for segment in self._segments)

    def sequences(self, key: str, first: int = 0, last: int | None = None) -> list[int]:
        """Return the records listed for a key between two sequences, both included."""
        listed: list[int] = []
        for segment in self._between(first, last):
            listed += segment.listed(key)
        return self._within(listed, first, last)

    def names(self, kind: str, first: int, last: int) -> Iterator[str]:
        """Yield the names of keys of a kind that list a record between two sequences.

        A name may be yielded more than once. ``first`` is not before the first indexed record.
        """
        for segment in self._between(first, last):
            head = segment.head
            whole = first <= head.first and head.last <= last
            for key, value in segment.starting(kind):
                if whole or any(first <= sequence <= last for sequence in unpack_sequences(value)):
                    yield key[len(kind) :]

    def next_after(self, key: str, sequence: int) -> int | None:
        """Return the first record after another one that is listed for a key; None: there is none.

        The search ends at the first segment that has one.
        """
        for segment in self._between(sequence + 1, None):
            listed = segment.listed(key)
            at = bisect_right(listed, sequence)
            if at < len(listed):
                return listed[at]
        return None

    def topics(
        self,
        prefix: str,
        matches: Callable[[str], bool],
        first: int = 0,
        last: int | None = None,
        kind: str = TOPIC,
    ) -> list[int]:
        """Return the records that name a matching topic; all such topics begin with the prefix.

        ``kind`` is ``TOPIC``, ``EFFECT`` or ``DROPPED``.
        """
        listed: set[int] = set()
        for segment in self._between(first, last):
            for key, value in segment.starting(kind + prefix):
                if matches(key[1:]):
                    listed.update(unpack_sequences(value))
        return self._within(sorted(listed), first, last)

    def effects_in_steps(
        self, prefix: str, matches: Callable[[str], bool], first: int, last: int
    ) -> Generator[None, None, list[int] | None]:
        """Return the records between two in which messages on matching topics may take effect.

        ``prefix`` is as for :meth:`topics`. None: the index does not show it. Yields where others
        may run.
        """
        segments = self._between(first, last)
        effects = all(part.head.effects for part in segments)
        if first < self.first or last > self.last or not effects:
            return None
        listed = set(self.sequences(EFFECT, first, last))
        for segment in segments:
            for kind in (TOPIC, EFFECT):
                for key, value in segment.starting(kind + prefix):
                    if matches(key[1:]):
                        listed.update(unpack_sequences(value))
                    yield
        return self._within(sorted(listed), first, last)

    def segment_end(self, sequence: int) -> int:
        """Return the last record of the segment that has an indexed record."""
        return self._between(sequence, sequence)[0].head.last

    def topic(self, topic: str, first: int = 0, last: int | None = None) -> list[int]:
        """Return the records that name a topic."""
        return self.sequences(TOPIC + topic, first, last)

    def referring(self, sequences: Iterable[int], last: int | None = None) -> set[int]:
        """Return the later records that refer to messages in these records, up to ``last``."""
        referred = set(sequences)
        later = {by for _, by, _ in self._references(referred, last)}
        return self._kept(later, last)

    def referring_to(
        self, messages: Mapping[int, frozenset[int]], last: int | None = None
    ) -> set[int]:
        """Return the later records that refer to these messages, up to ``last``.

        ``messages`` are the indexes of the messages by their records.
        """
        later = {
            by
            for at, by, runs in self._references(messages.keys(), last)
            if not messages[at].isdisjoint(from_runs(runs))
        }
        return self._kept(later, last)

    def _references(
        self, sequences: Collection[int], last: int | None
    ) -> Iterator[tuple[int, int, list[Run]]]:
        """Yield the references to these records: record, later record, indexes of messages."""
        if not sequences:
            return
        groups = sorted({group_key(REFERRED, sequence) for sequence in sequences})
        for segment in self._between(min(sequences), last):
            for key in groups:
                for at, by, runs in _triples(segment.get(key) or ()):
                    if at in sequences:
                        yield at, by, runs

    def _kept(self, records: set[int], last: int | None) -> set[int]:
        return {at for at in records if self.first <= at and (last is None or at <= last)}

    def referring_before(self, last: int | None = None) -> set[int]:
        """Return the records that refer to messages from before the first indexed record."""
        end = group_key(REFERRED, self.first)
        later: set[int] = set()
        for segment in self._between(0, last):
            for key, references in segment.starting(REFERRED):
                if key > end:
                    break
                later.update(by for at, by, _ in _triples(references) if at < self.first)
        return self._kept(later, last)

    def rare(self, kind: str, first: int = 0) -> list[int]:
        """Return the records with an event of a rare type."""
        return self.sequences(RARE + kind, first)

    def latest_rare(self, kind: str, last: int) -> int | None:
        """Return the last record up to ``last`` with an event of a rare type.

        It may be older than the indexed records.
        """
        for segment in reversed(self._segments):
            listed = segment.listed(RARE + kind)
            at = bisect_right(listed, last)
            if at:
                return listed[at - 1]
        return None

    def state_before(self, session: str, bound: Position) -> SavedState | None:
        """Return the last saved state of a session up to a position; None: there is none."""
        for segment in reversed(self._segments):
            for saved in reversed(segment.get(STATES + session) or ()):
                if saved[0] <= bound:
                    return SavedState(*saved[:3])
        return None

    def listed_before(self, key: str, sequence: int) -> bool:
        """Return whether a cut-off record, from ``sequence`` on, is listed for a key."""
        for segment in self._between(sequence, self.first - 1):
            listed = segment.listed(key)
            at = bisect_left(listed, sequence)
            if at < len(listed) and listed[at] < self.first:
                return True
        return False

    def check(self, record: Record) -> None:
        """Raise BadIndex when a record differs from the indexed one."""
        sequence = record.sequence
        if not self.first <= sequence <= self.last:
            return
        at = bisect_right(self._segments, sequence, key=_first) - 1
        rows = self._segments[at].get(group_key(CHECKS, sequence)) or ()
        for first, row in zip(rows[::2], rows[1::2], strict=True):
            offset = (sequence - first) * CHECK_LENGTH
            if 0 <= offset < len(row):
                if record.link.hex()[:CHECK_LENGTH] == row[offset : offset + CHECK_LENGTH]:
                    return
                break
        raise BadIndex(f"record {sequence} is not the one that was indexed")

    def _between(self, first: int, last: int | None) -> Sequence[Segment]:
        """Return the segments that cover records between two sequences."""
        start = max(0, bisect_right(self._segments, first, key=_first) - 1)
        if last is None:
            return self._segments[start:]
        return self._segments[start : bisect_right(self._segments, last, key=_first)]

    def _within(self, ascending: list[int], first: int, last: int | None) -> list[int]:
        start = bisect_left(ascending, max(first, self.first))
        stop = len(ascending) if last is None else bisect_right(ascending, last)
        return ascending[start:stop]


def _triples(references: Sequence[Any]) -> Iterator[tuple[int, int, list[Run]]]:
    return zip(references[::3], references[1::3], references[2::3], strict=True)


def _first(segment: Segment) -> int:
    return segment.head.first
