"""The events of several sessions in a batch of records, read column by column.

Each stands for events of single sessions (``eventstore.format.turn_events``). A group has those of
one type for which they stand; their text is neither written nor parsed. Columns that do not fit
together raise UnusualEvent.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eventstore.format.positions import MAX_INDEX
from spark.tables.arrays import indices
from spark.tables.event_fields import SHAPES
from spark.tables.event_groups import EventGroup
from spark.tables.integer_columns import Integers, UnusualEvent, numbers_within, sums_before

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from spark.tables.integer_text import Flags
    from spark.tables.json_scan import JsonScan

_ACKED: Final = ("Acked", "Received", "Completed")
_SINGLE_EVENT_OF: Final = {
    "TurnPublished": "MessagePublished",
    "TurnDelivered": "Delivered",
    "TurnReleased": "Released",
}


class StringPick(NamedTuple):
    """Strings, and which of them each entry has."""

    opens: Integers
    closes: Integers
    """Their quotes."""
    which: Integers


class PropertyBlocks(NamedTuple):
    """Property blocks of some events, and which of them each entry has."""

    begins: Integers
    sizes: Integers
    """Their places in the payload areas."""
    events: Integers
    """For each block, the number of the event in the text of the batch."""
    which: Integers
    """For each entry the index of its block, -1: none."""


class TurnEvents(EventGroup):
    """Events of several sessions, of one type, as they were written."""

    def __init__(self, kind: str, scan: JsonScan, numbers: Integers) -> None:
        """Take the events with some numbers; raise UnusualEvent for one of unusual form."""
        super().__init__(kind, scan, numbers)
        self._texts: dict[tuple[str, bool], pa.Array] = {}
        if len(self) and int(self.counts.min()) < 1:
            raise UnusualEvent(f"a {kind} without entries")
        names, opens, closes = self.string_places("sessions")
        self._local = self._index_in("by", names)
        sessions = StringPick(opens, closes, sums_before(names)[self.event_of] + self._local)
        self.picks = {"session": sessions}
        """Columns of strings."""
        if kind == "TurnDelivered":
            filters, opens, closes = self.string_places("filters")
            if not np.array_equal(filters, names):
                raise UnusualEvent("a TurnDelivered with another number of filters than sessions")
            self.picks["filter"] = StringPick(opens, closes, sessions.which)
        elif kind == "TurnPublished":
            topics, opens, closes = self.string_places("topics")
            which = sums_before(topics)[self.event_of] + self._index_in("which", topics)
            self.picks["topic"] = StringPick(opens, closes, which)
            self._check_lengths(self.integers("count"), "messages")
            _ = self.sizes, self.starts, self.block_pick
        if "refs" in self._fields:
            self.refs()
        _ = self.reasons

    @cached_property
    def counts(self) -> Integers:
        """Number of entries of each event."""
        return self.integer_lists("pids")[0]

    @property
    def pid_values(self) -> Integers:
        """The packet identifier of each entry."""
        return self.integer_lists("pids")[1]

    def _index_in(self, by: str, named: Integers) -> Integers:
        """Return for each entry which of the values of its event it has.

        ``named`` is the number of values in each event.
        """
        given, which = self.integer_lists(by)
        each_own = (given == 0) & (named == self.counts)
        only = (given == 0) & (named == 1)
        if not (each_own | only | (given == self.counts)).all():
            raise UnusualEvent(f"a {self.kind} with another number of {by} than of entries")
        if each_own.all():
            return self.entry
        local = np.where(each_own[self.event_of], self.entry, 0)
        local[np.repeat(given > 0, self.counts)] = which
        if int(local.min()) < 0 or (local >= named[self.event_of]).any():
            raise UnusualEvent(f"a {self.kind} with an index without a value")
        return local

    @cached_property
    def _begins(self) -> Flags:
        """For each entry, whether an event of a single session begins with it."""
        begins = np.ones(self.total, np.bool_)
        owners, local = self.event_of, self._local
        begins[1:] = (owners[1:] != owners[:-1]) | (local[1:] != local[:-1])
        return begins

    @cached_property
    def single_counts(self) -> Integers:
        """Number of entries of each event of a single session."""
        counts = np.diff(np.flatnonzero(self._begins), append=self.total)
        if int(counts.max(initial=0)) > MAX_INDEX + 1:
            raise UnusualEvent(f"a {self.kind} with a count that cannot be")
        return counts

    @cached_property
    def spread(self) -> Integers:
        """Number of events of single sessions for which each event stands."""
        return np.bincount(self.event_of[self._begins], minlength=len(self))

    def texts(self, column: str, *, raw: bool) -> pa.Array:
        """Return the strings of a column, or with ``raw`` their JSON without quotes."""
        raw = raw and self._scan.has_escapes
        found = self._texts.get((column, raw))
        if found is None:
            pick, cut = self.picks[column], self._scan.raw if raw else self._scan.strings
            found = self._texts[column, raw] = cut(pick.opens + 1, pick.closes)
        return found

    @cached_property
    def block_pick(self) -> PropertyBlocks | None:
        """The property blocks of messages; None: there are none."""
        if not self.has_added():
            return None
        lengths, sizes = self.added_integers("blocks")
        given, of = self.added_integers("block_of")
        if not ((given == 0) | (given == self.counts)).all():
            raise UnusualEvent("a TurnPublished with another number of blocks than of messages")
        number = np.repeat((lengths > 0).astype(np.int64), self.counts)
        number[np.repeat(given > 0, self.counts)] = of
        if int(sizes.min(initial=0)) < 0:
            raise UnusualEvent("a TurnPublished with a negative size")
        if int(number.min(initial=0)) < 0 or (number > lengths[self.event_of]).any():
            raise UnusualEvent("a TurnPublished with a property block that is not there")
        events = np.repeat(np.arange(len(self)), lengths)
        so_far = np.concatenate(([0], np.cumsum(sizes)))
        ends = so_far[np.cumsum(lengths)]
        begins = self.integers("at")[events] - ends[events] + so_far[:-1]
        which = sums_before(lengths)[self.event_of] + number - 1
        return PropertyBlocks(begins, sizes, self.numbers[events], np.where(number > 0, which, -1))

    @cached_property
    def reasons(self) -> Integers | None:
        """The reason code of each acknowledgement; None: all are 0."""
        if self.kind != "TurnAcked" or not self.has_added():
            return None
        lengths, values = self.added_integers("reasons")
        self._check_lengths(np.where(lengths == 0, self.counts, lengths), "reasons")
        found = np.zeros(self.total, np.int64)
        found[np.repeat(lengths > 0, self.counts)] = values
        return found


class TurnGroup:
    """The events of one type for which events of several sessions stand, in the order of the log.

    Neighbours of one session are one event.
    """

    def __init__(self, kind: str, source: TurnEvents, kept: Integers | None = None) -> None:
        """Take some of the events of single sessions, by their number; None: all."""
        self.kind = kind
        """The type for which the events stand."""
        self._source = source
        self._kept = kept
        self.counts = source.single_counts if kept is None else source.single_counts[kept]
        """Number of entries of each event."""
        self._entries: Integers | None = None
        if kept is not None:
            entries = np.repeat(sums_before(source.single_counts)[kept], self.counts)
            self._entries = entries + numbers_within(self.counts)
        self.total = int(self.counts.sum())
        """Number of entries of all events."""
        self.single = len(self.counts) == self.total
        """Whether each event has one entry."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.counts)

    @cached_property
    def event_of(self) -> Integers:
        """For each entry the number of its event."""
        numbers = np.arange(len(self))
        return numbers if self.single else np.repeat(numbers, self.counts)

    @cached_property
    def entry(self) -> Integers:
        """For each entry its number within its event."""
        return np.zeros(self.total, np.int64) if self.single else numbers_within(self.counts)

    @property
    def written(self) -> Integers:
        """The number in the text of each event that was written."""
        return self._source.numbers

    @property
    def owners(self) -> Integers:
        """For each event, the number in the text of the one that stands for it."""
        found = np.repeat(self.written, self.spread)
        return found if self._kept is None else found[self._kept]

    @property
    def spread(self) -> Integers:
        """Number of events of single sessions for which each of these stands."""
        return self._source.spread

    def places(self, firsts: Integers) -> Integers:
        """Return the number of each event in the batch.

        ``firsts`` has for each event in the text the number of the first one for which it stands.
        """
        found = np.repeat(firsts[self.written], self.spread) + numbers_within(self.spread)
        return found if self._kept is None else found[self._kept]

    def has(self, name: str) -> bool:
        """Return whether the events have a field."""
        return name in SHAPES[self.kind].fields

    def some(self, keep: Sequence[int]) -> TurnGroup:
        """Return the group of some of its events."""
        kept = np.array(keep, np.int64)
        return TurnGroup(self.kind, self._source, kept if self._kept is None else self._kept[kept])

    def strings(self, name: str) -> pa.Array:
        """Return the session or the filter of all events."""
        values, which = self.text(name)
        return values.take(indices(which[sums_before(self.counts)]))

    def _of(self, values: Integers) -> Integers:
        """Return the values of these entries, of those of all entries that were written."""
        return values if self._entries is None else values[self._entries]

    def text(self, column: str, *, raw: bool = False) -> tuple[pa.Array, Integers]:
        """Return the strings of a column, and which of them each entry has.

        ``raw``: as they are in JSON, without their quotes.
        """
        which = self._source.picks[column].which
        return self._source.texts(column, raw=raw), self._of(which)

    def pids(self) -> Integers:
        """Return the packet identifier of each entry."""
        return self._of(self._source.pid_values)

    def refs(self) -> Integers:
        """Return the position of the message that each entry is about."""
        return self._of(self._source.refs())

    def qos(self) -> Integers:
        """Return the QoS of each entry."""
        return self._of(self._source.integers("qos")[self._source.event_of])

    @cached_property
    def sizes(self) -> Integers:
        """Payload bytes of each message."""
        return self._of(self._source.sizes)

    @cached_property
    def starts(self) -> Integers:
        """Start of each payload in its record's payload area."""
        return self._of(self._source.starts)

    def reasons(self) -> tuple[Integers, Flags] | None:
        """Return the reason code of each entry, and whether its event has one that is not 0.

        None: no event has.
        """
        values = self._source.reasons
        if values is None or not len(self):
            return None
        each = self._of(values)
        some = np.logical_or.reduceat(each != 0, sums_before(self.counts))
        return (each, some[self.event_of]) if some.any() else None

    def has_added(self) -> bool:
        """Return whether some event has fields beyond the usual ones."""
        return self._source.has_added()

    def blocks(self) -> PropertyBlocks | None:
        """Return the property blocks of messages; None: there are none."""
        found = self._source.block_pick if self.kind == "MessagePublished" else None
        return None if found is None else found._replace(which=self._of(found.which))

    def longest(self) -> int:
        """Return the approximate maximum of ``widths``."""
        picks = self._source.picks.values()
        return sum(int((pick.closes - pick.opens).max(initial=0)) for pick in picks)

    def widths(self) -> Integers:
        """Return the approximate bytes of strings that each entry has."""
        widths = np.zeros(self.total, np.int64)
        for pick in self._source.picks.values():
            widths += (pick.closes - pick.opens)[self._of(pick.which)]
        return widths


def groups_of_turns(kind: str, scan: JsonScan, numbers: Integers) -> Iterator[TurnGroup]:
    """Yield events of several sessions, of one type, by the type for which they stand."""
    if kind != "TurnAcked":
        yield TurnGroup(_SINGLE_EVENT_OF[kind], TurnEvents(kind, scan, numbers))
        return
    kinds = np.array(EventGroup(kind, scan, numbers).strings("kind").to_pylist())
    if not np.isin(kinds, _ACKED).all():
        raise UnusualEvent("a TurnAcked of an unknown type")
    for name in _ACKED:
        if len(some := numbers[kinds == name]):
            yield TurnGroup(name, TurnEvents(kind, scan, some))
