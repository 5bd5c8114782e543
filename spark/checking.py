"""The records of a range, each checked by itself, against the one before, and within its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventstore.errors import CorruptLog
from eventstore.records import GENESIS, Record, link_of
from spark.opening import frame_of
from spark.stored import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark.planning import Range


@dataclass(slots=True)
class Checked:
    """A record as it was found."""

    sequence: int
    data: bytes | None
    """None: it is not there."""
    record: Record | None
    """None: it cannot be read."""
    damage: str | None = None
    void: bool = False
    """It is part of a turn that never finished."""


class Checker:
    """Goes through the records of a range.

    ``open_record`` opens a record whose bytes are given with its sequence. ``strict`` makes the
    first damage an error.
    """

    def __init__(
        self, part: Range, open_record: Callable[[int, bytes], Record], *, strict: bool
    ) -> None:
        self._part = part
        self._open_record = open_record
        self._strict = strict

    def records(self) -> Iterator[Checked]:
        """Yield the records in order; damaged and missing ones too, unless they are an error.

        Raises CorruptLog if they are, CutMeanwhile for records that were cut off meanwhile, and
        UnknownLogFormat for one that a later foldmq wrote.
        """
        held: list[Checked] = []
        anywhere = self._part.first > self._part.stored.first
        for one in self._in_order():
            if one.record is None and not held:
                anywhere = True  # it may have been the first part of a turn
                yield one
                continue
            if one.record is not None and one.record.part == 0:
                yield from _void(held)
                held = []
            held.append(one)
            if one.record is not None and one.record.last:
                begins = next(item.record for item in held if item.record is not None)
                yield from held if begins.part == 0 or anywhere else _void(held)
                held = []
                anywhere = False
        yield from held if held and self._goes_on() else _void(held)

    def _in_order(self) -> Iterator[Checked]:
        part = self._part
        expected = part.first
        link: bytes | None = GENESIS if part.first == 1 else None
        with opened(part.stored, max(part.stored.first, part.first - 1), part.last) as found:
            for sequence, data in found:
                if sequence < part.first:
                    link = link_of(data)
                    continue
                if sequence != expected:
                    yield self._missing(expected, sequence - 1)
                    link = None
                one = self._opened(sequence, data)
                link = self._continued(one, link)
                yield one
                expected = sequence + 1
        if expected <= part.last:
            yield self._missing(expected, part.last)

    def _opened(self, sequence: int, data: bytes) -> Checked:
        try:
            return Checked(sequence, data, self._open_record(sequence, data))
        except CorruptLog as error:
            return Checked(sequence, data, None, self._damage(sequence, error.what))

    def _continued(self, one: Checked, link: bytes | None) -> bytes | None:
        """Check a record against the link of the one before, None: unknown; return its own."""
        if one.record is None:
            return None
        if link is not None and one.record.previous != link:
            one.damage = self._damage(one.sequence, f"does not continue record {one.sequence - 1}")
        return one.record.link

    def _missing(self, first: int, last: int) -> Checked:
        what = "is missing or cannot be read"
        if first < last:
            what = f"and all up to {last} are missing or cannot be read"
        gone = self._part.stored.explain(first)
        if isinstance(gone, CorruptLog):
            what = gone.what
        elif gone is not None:
            raise gone
        return Checked(first, None, None, self._damage(first, what))

    def _damage(self, sequence: int, what: str) -> str:
        """Return what is damaged, with the place if there is one to name; raise it if strict."""
        place = self._part.stored.place(sequence)
        if place:
            what = f"{what} ({place})"
        if self._strict:
            raise CorruptLog(sequence, what)
        return what

    def _goes_on(self) -> bool:
        """Return whether the turn in which the range ends becomes whole behind it."""
        part = self._part
        if part.last >= part.horizon:
            return False
        with opened(part.stored, part.last + 1, part.horizon) as behind:
            for sequence, data in behind:
                try:
                    record = frame_of(sequence, data)
                except CorruptLog:  # told by whoever reads that range
                    continue
                if record.part == 0:
                    return False
                if record.last:
                    return True
        return False


def _void(held: list[Checked]) -> list[Checked]:
    for one in held:
        one.void = one.record is not None
    return held
