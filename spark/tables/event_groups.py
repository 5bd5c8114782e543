"""The events of one type in a batch of records, and their entries."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eventstore.format.stored_properties import block_bounds, expires_at, expiries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.positions import Run
    from eventstore.format.records import Record
    from spark.tables.arrays import Integers

MESSAGES: Final = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})
"""Events that contain messages: an entry for each."""
WITH_BLOCKS: Final = MESSAGES | {"WillArmed"}
"""Events with payloads and property blocks."""
_OTHER_LISTS: Final = frozenset({"MessageDropped", "SubscriptionDenied"})
"""Events with one entry, whose lists are about something else."""


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

    def values(self, name: str) -> list[Any]:
        """Return a field of each event."""
        return [getattr(event, name) for event in self.events]

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
        known: dict[bytes, int] = {}
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
                known.setdefault(block, len(known)) if block else -1 for block in blocks
            ]
        return [*known], where

    def check_areas(self) -> None:
        """Raise UnusualEvent unless payloads and blocks are within their record's payload area."""
        for event, count, record in zip(
            self.events, self.counts.tolist(), self._records, strict=True
        ):
            sizes = event.sizes if self.kind in MESSAGES else event.size
            begin, end = (
                event.at,
                event.at + (sizes * count if isinstance(sizes, int) else sum(sizes)),
            )
            if event.blocks and not getattr(event, "blocks_at", ()):
                begin -= sum(event.blocks)
            if begin < 0 or end < event.at or end > len(record.payload):
                raise UnusualEvent("a payload outside the record's payload area")

    def expiries(self) -> list[int | None]:
        """Return for each entry the Unix time in seconds at which its message expires."""
        if self.kind == "MessagePublished":
            blocks, where = self.blocks
            steady = [record.steady_ms for record in self._records]
            owners = self.event_of.tolist()
            return [
                (expires_at(blocks[at], steady[owner]) or None) if at >= 0 else None
                for at, owner in zip(where.tolist(), owners, strict=True)
            ]
        pairs = zip(self.values("expires"), self.counts.tolist(), strict=True)
        lists = [expiries_of(expires, count) or [0] * count for expires, count in pairs]
        self.check_lengths(lengths_of(lists), "expires")
        return [value or None for value in chain.from_iterable(lists)]
