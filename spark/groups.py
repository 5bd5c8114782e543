"""The events of one type in a batch of records, read column by column.

A field that is needed is taken from all events at once; what is not needed is not looked at. Lists
that do not fit each other are a Misfit.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eventstore.positions import MAX_INDEX
from spark.runs import Integers, Misfit, as_integers, before, expand, numbers_within

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES: Final = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})
"""Events that bring messages: an entry for each."""
COUNTED_BY: Final = {
    "Delivered": "refs",
    "Queued": "refs",
    "Released": "refs",
    "Acked": "pids",
    "Received": "pids",
    "Completed": "pids",
    "Redelivered": "pids",
}
"""Events with an entry for each integer of a column of runs."""


_INT: Final = frozenset({int})


class Group:
    """The events of one type, in the order of the log."""

    def __init__(self, kind: str, events: list[Any], numbers: Integers) -> None:
        self.kind = kind
        self.events = events
        self.numbers = numbers
        """The number of each event in the batch."""
        self._expanded: dict[str, tuple[Integers, Integers]] = {}

    def field(self, name: str) -> list[Any]:
        """Return a field of all events."""
        return list(map(attrgetter(name), self.events))

    def integers(self, name: str) -> Integers:
        """Return a field of integers of all events."""
        return as_integers(self.field(name))

    def some(self, keep: Sequence[int]) -> Group:
        """Return the group of some of the events only."""
        return Group(self.kind, [self.events[at] for at in keep], self.numbers[list(keep)])

    @cached_property
    def counts(self) -> Integers:
        """How many entries each event has."""
        if self.kind in MESSAGES:
            counts = self.integers("count")
        elif self.kind in COUNTED_BY:
            counts = self.runs(COUNTED_BY[self.kind])[0]
        else:
            return np.ones(len(self.events), np.int64)
        if len(counts) and (int(counts.min()) < 0 or int(counts.max()) > MAX_INDEX + 1):
            raise Misfit(f"{self.kind} with a count that cannot be")
        return counts

    @cached_property
    def total(self) -> int:
        """How many entries they have together."""
        return int(self.counts.sum())

    @cached_property
    def single(self) -> bool:
        """Whether each event has one entry."""
        return bool((self.counts == 1).all())

    @cached_property
    def event_of(self) -> Integers:
        """For each entry, which of the events it belongs to."""
        numbers = np.arange(len(self.events))
        return numbers if self.single else np.repeat(numbers, self.counts)

    @cached_property
    def entry(self) -> Integers:
        """For each entry, its number within its event."""
        return np.zeros(self.total, np.int64) if self.single else numbers_within(self.counts)

    def pids(self) -> tuple[Integers, Integers | None]:
        """Return packet identifiers, and which of them each entry has; None: one each, in order.

        An entry of an event without packet identifiers has number -1.
        """
        counts, values = self.runs("pids")
        if np.array_equal(counts, self.counts):
            return values, None
        empty = counts == 0
        if self.kind != "MessagePublished" or not (empty | (counts == self.counts)).all():
            raise Misfit(f"{self.kind} with fewer packet identifiers than messages")
        pick = np.repeat(before(counts), self.counts) + self.entry
        pick[np.repeat(empty, self.counts)] = -1
        return values, pick

    def refs(self) -> Integers:
        """Return the position of the message that each entry is about."""
        counts, values = self.runs("refs")
        if not np.array_equal(counts, self.counts):
            raise Misfit(f"{self.kind} with another number of positions than of messages")
        return values

    def runs(self, name: str) -> tuple[Integers, Integers]:
        """Return a column of runs: how many integers for each event, and all of them."""
        found = self._expanded.get(name)
        if found is None:
            found = self._expanded[name] = expand(self.field(name))
        return found

    def waits(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return for each entry of MessagesCarried whether its event names it as waiting."""
        counts, values = self.runs("waiting")
        if not len(values):
            return np.zeros(self.total, np.bool_)
        # Event by event: another one may carry the same message.
        refs = self.refs()
        _, number = np.unique(np.concatenate((refs, values)), return_inverse=True)
        owners = np.concatenate((self.event_of, np.repeat(np.arange(len(counts)), counts)))
        named = owners * len(number) + number
        return np.isin(named[: len(refs)], named[len(refs) :])

    @cached_property
    def sizes(self) -> Integers:
        """The payload bytes of each message."""
        sizes = self.field("sizes")
        if _INT.issuperset(map(type, sizes)):
            each = as_integers(sizes)[self.event_of]
        else:
            spread = (
                [size] * count if type(size) is int else size
                for size, count in zip(sizes, self.counts.tolist(), strict=True)
            )
            each = self._for_each(list(spread), "sizes")
        if len(each) and int(each.min()) < 0:
            raise Misfit(f"{self.kind} with a negative size")
        return each

    @cached_property
    def starts(self) -> Integers:
        """Where each payload begins in its record's payload area."""
        at = self.integers("at")
        so_far = before(self.sizes)
        firsts = before(self.counts)
        inside = np.minimum(firsts, max(self.total - 1, 0))
        base = so_far[inside] if self.total else np.zeros(len(firsts), np.int64)
        return (at - base)[self.event_of] + so_far

    def topics(self) -> tuple[list[str], Integers | None]:
        """Return topics, and which of them each message has; None: one each, in order."""
        topics = self.field("topics")
        flat = list(chain.from_iterable(topics))
        lengths = np.fromiter(map(len, topics), np.int64, len(topics))
        if self.kind == "RetainedSnapshot":
            if not np.array_equal(lengths, self.counts):
                raise Misfit("RetainedSnapshot with another number of topics than of messages")
            return flat, None
        which = self.field("which")
        if not any(which):
            if len(lengths) and int(lengths[self.counts > 0].min(initial=1)) < 1:
                raise Misfit(f"{self.kind} without a topic")
            return flat, before(lengths)[self.event_of]
        spread = (
            chosen or [0] * count for chosen, count in zip(which, self.counts.tolist(), strict=True)
        )
        chosen = self._for_each(list(spread), "which")
        if len(chosen) and (
            int(chosen.min()) < 0 or bool((chosen >= lengths[self.event_of]).any())
        ):
            raise Misfit(f"{self.kind} with a topic that is not there")
        return flat, before(lengths)[self.event_of] + chosen

    def _for_each(self, lists: list[Any], name: str) -> Integers:
        """Return one integer for each entry from one list for each event."""
        return as_integers(self._joined(lists, name))

    def for_each(self, name: str) -> list[Any]:
        """Return what a list in each event has for each entry."""
        return self._joined(self.field(name), name)

    def _joined(self, lists: list[Any], name: str) -> list[Any]:
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        if not np.array_equal(lengths, self.counts):
            raise Misfit(f"{self.kind} with another number of {name} than of messages")
        return list(chain.from_iterable(lists))
