"""The events of one type in a batch of records, and their entries.

Lists of different lengths raise UnusualEvent.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from eventstore.format.positions import MAX_INDEX
from spark.tables.event_columns import EventColumns
from spark.tables.integer_columns import Integers, UnusualEvent, numbers_within, sums_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec
    import pyarrow as pa

    from spark.tables.integer_text import Flags

MESSAGES: Final = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})
"""Events that contain messages: an entry for each."""
COUNTED_BY: Final = {
    "Delivered": "refs",
    "Queued": "refs",
    "Released": "refs",
    "InboundReplaced": "refs",
    "Acked": "pids",
    "Received": "pids",
    "Refused": "pids",
    "Completed": "pids",
    "Returned": "pids",
    "Expired": "refs",
    "Assigned": "refs",
    "Redelivered": "pids",
}
"""Events with an entry for each integer of a column of runs."""


class EventGroup(EventColumns):
    """The events of one type, in the order of the log."""

    def some(self, keep: Sequence[int]) -> EventGroup:
        """Return the group of some of its events."""
        return EventGroup(self.kind, self._scan, self.numbers[list(keep)])

    def places(self, firsts: Integers) -> Integers:
        """Return the number of each event in the batch, given those of all events in its text."""
        return firsts[self.numbers]

    @cached_property
    def counts(self) -> Integers:
        """Number of entries of each event."""
        if self.kind in MESSAGES:
            counts = self.integers("count")
        elif self.kind in COUNTED_BY:
            counts = self.runs(COUNTED_BY[self.kind])[0]
        else:
            return np.ones(len(self), np.int64)
        if len(counts) and (int(counts.min()) < 0 or int(counts.max()) > MAX_INDEX + 1):
            raise UnusualEvent(f"{self.kind} with a count that cannot be")
        return counts

    @cached_property
    def total(self) -> int:
        """Number of entries of all events."""
        return int(self.counts.sum())

    @cached_property
    def single(self) -> bool:
        """Whether each event has one entry."""
        return bool((self.counts == 1).all())

    @cached_property
    def event_of(self) -> Integers:
        """For each entry the number of its event."""
        numbers = np.arange(len(self))
        return numbers if self.single else np.repeat(numbers, self.counts)

    @cached_property
    def entry(self) -> Integers:
        """For each entry its number within its event."""
        return np.zeros(self.total, np.int64) if self.single else numbers_within(self.counts)

    def pids(self) -> tuple[Integers, Integers | None]:
        """Return packet identifiers, and the index of each entry; None: one each, in order.

        An entry of an event without packet identifiers has index -1.
        """
        counts, values = self.runs("pids")
        if np.array_equal(counts, self.counts):
            return values, None
        empty = counts == 0
        if self.kind != "MessagePublished" or not (empty | (counts == self.counts)).all():
            raise UnusualEvent(f"{self.kind} with fewer packet identifiers than messages")
        pick = np.repeat(sums_before(counts), self.counts) + self.entry
        pick[np.repeat(empty, self.counts)] = -1
        return values, pick

    def refs(self) -> Integers:
        """Return the position of the message that each entry is about."""
        counts, values = self.runs("refs")
        if not np.array_equal(counts, self.counts):
            raise UnusualEvent(f"{self.kind} with another number of positions than of messages")
        return values

    def waits(self) -> Flags:
        """Return for each entry of MessagesCarried whether its event marks it as waiting."""
        counts, values = self.runs("waiting")
        if not len(values):
            return np.zeros(self.total, np.bool_)
        # Event by event: another event may carry the same message.
        refs = self.refs()
        _, number = np.unique(np.concatenate((refs, values)), return_inverse=True)
        owners = np.concatenate((self.event_of, np.repeat(np.arange(len(counts)), counts)))
        named = owners * len(number) + number
        return np.isin(named[: len(refs)], named[len(refs) :])

    @cached_property
    def sizes(self) -> Integers:
        """Payload bytes of each message."""
        lengths, values = self.one_or_several("sizes")
        if lengths is None:
            each = values[self.event_of]
        else:
            spread = np.where(lengths < 0, self.counts, lengths)
            self._check_lengths(spread, "sizes")
            pick = np.repeat(sums_before(np.abs(lengths)), self.counts)
            pick += np.where(np.repeat(lengths < 0, self.counts), 0, self.entry)
            each = values[pick]
        if len(each) and int(each.min()) < 0:
            raise UnusualEvent(f"{self.kind} with a negative size")
        return each

    @cached_property
    def starts(self) -> Integers:
        """Start of each payload in its record's payload area."""
        at = self.integers("at")
        so_far = sums_before(self.sizes)
        firsts = sums_before(self.counts)
        inside = np.minimum(firsts, max(self.total - 1, 0))
        base = so_far[inside] if self.total else np.zeros(len(firsts), np.int64)
        return (at - base)[self.event_of] + so_far

    @cached_property
    def block_bytes(self) -> Integers:
        """For each event, the bytes of properties directly before its first payload."""
        found = np.zeros(len(self), np.int64)
        for place, raw in self.added:
            if "blocks_at" not in raw:
                found[place] = sum(raw.get("blocks", ()))
        return found

    def topics(self, *, raw: bool = False) -> tuple[pa.Array, Integers | None]:
        """Return topics, and the index of each message's topic; None: one each, in order.

        ``raw``: as they are in JSON, without their quotes.
        """
        lengths, topics = self.string_lists("topics", raw=raw)
        if self.kind == "RetainedSnapshot":
            self._check_lengths(lengths, "topics")
            return topics, None
        chosen, which = self.integer_lists("which")
        if len(lengths) and int(lengths[(self.counts > 0) & (chosen == 0)].min(initial=1)) < 1:
            raise UnusualEvent(f"{self.kind} without a topic")
        if not len(which):
            if self.single and (lengths == 1).all():
                return topics, None
            return topics, sums_before(lengths)[self.event_of]
        self._check_lengths(np.where(chosen == 0, self.counts, chosen), "which")
        picked = np.zeros(self.total, np.int64)
        picked[np.repeat(chosen > 0, self.counts)] = which
        if int(picked.min()) < 0 or bool((picked >= lengths[self.event_of]).any()):
            raise UnusualEvent(f"{self.kind} with a topic that is not there")
        return topics, sums_before(lengths)[self.event_of] + picked

    def properties(self) -> list[msgspec.Raw | None] | None:
        """Return the properties of each message, None for none; or None if no message has any."""
        lists = self.object_lists("properties")
        if not any(lists):
            return None
        found: list[msgspec.Raw | None] = []
        for properties, count in zip(lists, self.counts.tolist(), strict=True):
            if properties is not None and len(properties) != count:
                raise UnusualEvent(
                    f"{self.kind} with another number of properties than of messages"
                )
            found += [None] * count if properties is None else properties
        return found

    def for_each(self, name: str) -> Integers:
        """Return the value of each entry in a list of integers of its event."""
        lengths, values = self.integer_lists(name)
        self._check_lengths(lengths, name)
        return values

    def _check_lengths(self, lengths: Integers, name: str) -> None:
        if not np.array_equal(lengths, self.counts):
            raise UnusualEvent(f"{self.kind} with another number of {name} than of messages")
