"""The events of one type in a batch of records, and their entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from eventstore.format.positions import Run
from eventstore.format.stored_properties import block_bounds, expires_at, expiries_of
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished

if TYPE_CHECKING:
    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record
    from spark.tables.arrays import Integers

MESSAGES: Final = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})
"""Events that contain messages: an entry for each."""
WITH_BLOCKS: Final = MESSAGES | {"WillArmed"}
"""Events with payloads and property blocks."""
_OTHER_LISTS: Final = frozenset({"MessageDropped", "SubscriptionDenied"})
"""Events with one entry, whose lists are about something else."""


TableEvent: TypeAlias = "Event | TurnPublished | TurnDelivered | TurnAcked"
"""An event of one session, or a usual one of a turn, whose entries stand for events of sessions."""
_TURNS: Final = {TurnPublished: "MessagePublished", TurnDelivered: "Delivered"}
_TURN_VALUES: Final = {"retain": False, "will": False, "queued": -1, "properties": None}
"""Fields that events of turns lack, with the value that they stand for."""


def kind_of(event: TableEvent) -> str:
    """Return the type of event that the rows of an event have."""
    if isinstance(event, TurnAcked):
        return event.kind
    return _TURNS.get(type(event), event.e)


class UnusualEvent(Exception):  # noqa: N818 - a condition, handled where batches are made
    """Columns of an event do not fit together."""


def sums_before(counts: Integers) -> Integers:
    """Return the sum of all earlier counts for each count."""
    return np.cumsum(counts) - counts


def numbers_within(counts: Integers) -> Integers:
    """Return 0, 1, 2 ... for each count, one after the other."""
    return np.arange(int(counts.sum())) - np.repeat(sums_before(counts), counts)


def lengths_of(lists: Sequence[Sequence[Any]]) -> Integers:
    """Return the length of each list."""
    return np.fromiter(map(len, lists), np.int64, len(lists))


def spread_runs(columns: Sequence[Sequence[Run]]) -> tuple[Integers, Integers]:
    """Return the number of integers of each column of runs, and all integers in order."""
    runs = [*chain.from_iterable(columns)]
    lengths = lengths_of(columns)
    try:
        return lengths, np.fromiter(runs, np.int64, len(runs))
    except OverflowError:
        raise UnusualEvent("an integer beyond 64 bits") from None
    except TypeError:  # lists among them
        pass
    try:
        parts = [run if type(run) is list else (run, 1, 0) for run in runs]
        firsts, counts, steps = np.array(parts, np.int64).reshape(-1, 3).T
        lasts = firsts.astype(float) + (counts - 1.0) * steps
    except (ValueError, OverflowError):
        raise UnusualEvent("a run that is none") from None
    if ((steps == 0) & (counts > 1)).any() or (np.abs(lasts) > 1 << 62).any():
        raise UnusualEvent("a run that is none")
    values = np.repeat(firsts, counts) + np.repeat(steps, counts) * numbers_within(counts)
    sums = np.concatenate(([0], np.cumsum(counts)))
    ends = np.cumsum(lengths)
    return sums[ends] - sums[ends - lengths], values


class EventGroup:
    """The events of one type, in the order of the log."""

    def __init__(
        self,
        kind: str,
        numbers: Integers,
        events: Sequence[Any],
        counts: Integers,
        records: Sequence[Record],
    ) -> None:
        """Take events of a type with the number of their entries, and their records."""
        self.kind = kind
        self.numbers = numbers
        """The number of each event in the batch."""
        self.events = events
        self.counts = counts
        self.total = int(counts.sum())
        """Number of entries of all events."""
        self._records = records

    @cached_property
    def event_of(self) -> Integers:
        """For each entry the number of its event."""
        return np.repeat(np.arange(len(self.events)), self.counts)

    @cached_property
    def entry(self) -> Integers:
        """For each entry its number within its event."""
        return numbers_within(self.counts)

    @cached_property
    def entry_numbers(self) -> tuple[Integers, Integers]:
        """For each entry its number within the event of one session, and the entries of that."""
        return self.entry, self.counts[self.event_of]

    def values(self, name: str) -> list[Any]:
        """Return a field of each event."""
        return [getattr(event, name) for event in self.events]

    def field(self, name: str) -> tuple[Sequence[Any], Integers]:
        """Return the values of a field that does not differ within an event of one session.

        With them, for each entry, the index of its value.
        """
        return self.values(name), self.event_of

    def widths(self, names: Sequence[str], /) -> Integers:
        """Return for each event the length of the text, in some fields, that its rows repeat."""
        widths = np.zeros(len(self.events), np.int64)
        for name in names:
            widths += [len(text or "") for text in self.values(name)]
        if self.kind in MESSAGES:
            widths += [max(map(len, event.topics), default=0) for event in self.events]
        return widths

    def check_lengths(self, lengths: Integers, name: str) -> None:
        """Raise UnusualEvent unless a column has a value for each entry."""
        if not np.array_equal(lengths, self.counts):
            raise UnusualEvent(f"a {self.kind} with another number of {name} than of entries")

    def each(self, name: str) -> Integers:
        """Return the value of each entry in a column of runs."""
        lengths, values = spread_runs(self.values(name))
        self.check_lengths(lengths, name)
        return values

    def optional(self, name: str) -> tuple[Integers, Integers]:
        """Return a column of runs that an event may lack: values, and each entry's index or -1."""
        lengths, values = spread_runs(self.values(name))
        self.check_lengths(np.where(lengths == 0, self.counts, lengths), name)
        where = np.full(self.total, -1)
        where[np.repeat(lengths > 0, self.counts)] = np.arange(len(values))
        return values, where

    @cached_property
    def sizes(self) -> Integers:
        """Payload bytes of each message."""
        sizes = self.values("sizes")
        if all(type(size) is int for size in sizes):
            each = np.array(sizes, np.int64)[self.event_of]
        else:
            pairs = zip(sizes, self.counts.tolist(), strict=True)
            lists = [[size] * count if isinstance(size, int) else size for size, count in pairs]
            self.check_lengths(lengths_of(lists), "sizes")
            each = np.array([*chain.from_iterable(lists)], np.int64)
        if int(each.min(initial=0)) < 0:
            raise UnusualEvent(f"a {self.kind} with a negative size")
        return each

    def topics(self) -> tuple[list[str], Integers]:
        """Return topics, and the index of each message's topic."""
        lists = self.values("topics")
        lengths, topics = lengths_of(lists), [*chain.from_iterable(lists)]
        if self.kind == "RetainedSnapshot":
            self.check_lengths(lengths, "topics")
            return topics, np.arange(self.total)
        values, where = self.optional("which")
        picked = np.append(values, 0)[where]
        if int(picked.min(initial=0)) < 0 or (picked >= lengths[self.event_of]).any():
            raise UnusualEvent(f"a {self.kind} with a topic that is not there")
        return topics, sums_before(lengths)[self.event_of] + picked

    def check_columns(self) -> None:
        """Raise UnusualEvent unless all columns have a value for each entry."""
        if self.total == len(self.events) or not self.events:
            return
        for name in ("pids", "refs", "reasons"):
            if hasattr(self.events[0], name) and self.kind not in _OTHER_LISTS:
                self.optional(name)
        if hasattr(self.events[0], "expires"):
            self.expiries()
        if self.kind in MESSAGES:
            _ = self.sizes, self.topics(), self.blocks

    @cached_property
    def blocks(self) -> tuple[list[bytes], Integers]:
        """The distinct property blocks, and the index of each entry's block, -1: none."""
        numbers: dict[bytes, int] = {}
        where = np.full(self.total, -1)
        firsts = sums_before(self.counts).tolist()
        for event, first, record in zip(self.events, firsts, self._records, strict=True):
            if not event.blocks:
                continue
            bounds = block_bounds(event)
            if bounds[0][0] < 0 or bounds[-1][1] > len(record.payload):
                raise UnusualEvent("a property block outside the record's payload area")
            messages = self.kind in MESSAGES
            blocks = record.blocks(event) if messages else record.distinct_blocks(event)
            where[first : first + len(blocks)] = [
                numbers.setdefault(block, len(numbers)) if block else -1 for block in blocks
            ]
        return [*numbers], where

    def areas(self) -> list[tuple[int, int]]:
        """Return the bounds of each event's payloads, with the blocks directly before them.

        Raises UnusualEvent unless they are within their record's payload area.
        """
        bounds: list[tuple[int, int]] = []
        for event, count, record in zip(
            self.events, self.counts.tolist(), self._records, strict=True
        ):
            sizes = event.sizes if self.kind in MESSAGES else event.size
            end = event.at + (sizes * count if isinstance(sizes, int) else sum(sizes))
            apart = not event.blocks or bool(getattr(event, "blocks_at", ()))
            begin = event.at if apart else event.at - sum(event.blocks)
            if begin < 0 or end < event.at or end > len(record.payload):
                raise UnusualEvent("a payload outside the record's payload area")
            bounds.append((begin, end))
        return bounds

    def payloads(self, *, whole: bool) -> tuple[list[memoryview], Integers]:
        """Return the payload bytes of each event, and the bytes of each row.

        ``whole``: a row for each event, with its blocks; otherwise for each entry.
        """
        areas = self.areas()
        if not whole:
            areas = [(event.at, end) for event, (_, end) in zip(self.events, areas, strict=True)]
        pieces = [
            record.payload[begin:end]
            for record, (begin, end) in zip(self._records, areas, strict=True)
        ]
        if not whole and self.kind in MESSAGES:
            return pieces, self.sizes
        return pieces, lengths_of(pieces)

    def expiries(self) -> tuple[list[int | None], Integers]:
        """Return the Unix times in seconds at which messages expire; for each entry its index."""
        if self.kind == "MessagePublished":
            blocks, block_of = self.blocks
            places = np.flatnonzero(block_of >= 0)
            where = np.full(self.total, -1)
            where[places] = np.arange(len(places))
            pairs = zip(block_of[places].tolist(), self.event_of[places].tolist(), strict=True)
            return [
                expires_at(blocks[block], self._records[owner].steady_ms) or None
                for block, owner in pairs
            ], where
        pairs = zip(self.values("expires"), self.counts.tolist(), strict=True)
        lists = [expiries_of(expires, count) or [0] * count for expires, count in pairs]
        self.check_lengths(lengths_of(lists), "expires")
        times = [value or None for value in chain.from_iterable(lists)]
        return times, np.arange(self.total)


class TurnGroup(EventGroup):
    """Events of turns that stand for events of one type: one for each run of a session."""

    def values(self, name: str) -> list[Any]:
        """Return a field of each event."""
        if name in _TURN_VALUES:
            return [_TURN_VALUES[name]] * len(self.events)
        return super().values(name)

    def field(self, name: str) -> tuple[Sequence[Any], Integers]:
        """Return the values of a field; for each entry the index of its value."""
        if name in ("session", "filter"):
            return self._picked(f"{name}s", "by")
        return super().field(name)

    def topics(self) -> tuple[list[str], Integers]:
        """Return topics, and the index of each message's topic."""
        return self._picked("topics", "which")

    def _picked(self, name: str, by: str) -> tuple[list[str], Integers]:
        lists, chosen = self.values(name), self.values(by)
        lengths, picks = lengths_of(lists), lengths_of(chosen)
        places = np.where((lengths == self.counts)[self.event_of], self.entry, 0)
        places[np.repeat(picks > 0, self.counts)] = [*chain.from_iterable(chosen)]
        return [*chain.from_iterable(lists)], sums_before(lengths)[self.event_of] + places

    @cached_property
    def entry_numbers(self) -> tuple[Integers, Integers]:
        """For each entry its number within the event of one session, and the entries of that."""
        _, sessions = self.field("session")
        begins = np.flatnonzero((self.entry == 0) | (np.diff(sessions, prepend=-1) != 0))
        lengths = np.diff(begins, append=self.total)
        return numbers_within(lengths), np.repeat(lengths, lengths)

    def widths(self, _names: Sequence[str], /) -> Integers:
        """Return for each event the length of the text, in some fields, that its rows repeat."""
        widths = np.zeros(len(self.events), np.int64)
        for name in ("sessions", "filters", "topics"):
            if hasattr(self.events[0], name):
                widths += [max(map(len, texts), default=0) for texts in self.values(name)]
        return widths

    def check_columns(self) -> None:
        """Do nothing: columns that do not fit together are no usual event of a turn."""
