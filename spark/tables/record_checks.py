"""Checks the records of a range: each by itself, against the one before, and within its turn."""

from collections.abc import Callable, Iterator

from eventstore.errors import CorruptLog, CutMeanwhile, UnknownLogFormat
from eventstore.format.records import GENESIS, Record, check_record, link_of
from projections.audit.fact_scan import CheckedRecord
from spark.tables.record_frames import frame_of
from spark.tables.stored_log import RecordRange, open_records


class RecordChecker:
    """Reads and checks the records of a range.

    ``open_record`` decodes a record from its sequence and bytes. ``strict`` makes the first damage
    an error. ``lossy`` leaves out records that were cut off meanwhile.
    """

    def __init__(
        self,
        part: RecordRange,
        open_record: Callable[[int, bytes], Record],
        *,
        strict: bool,
        lossy: bool = False,
    ) -> None:
        self._part = part
        self._open_record = open_record
        self._strict = strict
        self._lossy = lossy

    def records(self) -> Iterator[CheckedRecord]:
        """Yield the records in order, including damaged and missing ones unless they are an error.

        Raises CorruptLog if they are, CutMeanwhile for records that were cut off meanwhile unless
        they are left out, and UnknownLogFormat for a record of a later foldmq.
        """
        held: list[CheckedRecord] = []
        anywhere = self._part.first > self._part.stored.first
        for checked in self._in_order():
            if checked.record is None and not held:
                anywhere = True  # it may have been the first part of a turn
                yield checked
                continue
            if checked.record is not None and _begins_another(
                checked.record, held, _is_damaged(held)
            ):
                yield from _turn(held, anywhere, finished=_is_damaged(held))
                held = []
                anywhere = anywhere or checked.record.part > 0
            held.append(checked)
            if checked.record is not None and checked.record.last:
                yield from _turn(held, anywhere, finished=True)
                held = []
                anywhere = False
        yield from _turn(held, anywhere, finished=bool(held) and self._goes_on(held))

    def _in_order(self) -> Iterator[CheckedRecord]:
        part = self._part
        expected = part.first
        link = GENESIS if part.first == 1 else part.stored.link_before(part.first)
        before = max(part.stored.first, part.first - 1) if link is None else part.first
        with open_records(part.stored, before, part.last) as stored_records:
            for sequence, data in stored_records:
                if sequence < part.first:
                    link = _intact_link(sequence, data)
                    continue
                if sequence != expected:
                    yield from self._missing(expected, sequence - 1)
                    link = None
                checked = self._opened(sequence, data)
                link = self._continued(checked, link)
                yield checked
                expected = sequence + 1
        if expected <= part.last:
            yield from self._missing(expected, part.last)

    def _opened(self, sequence: int, data: bytes) -> CheckedRecord:
        try:
            return CheckedRecord(sequence, data, self._open_record(sequence, data))
        except CorruptLog as error:
            return CheckedRecord(sequence, data, None, self._damage(sequence, error.what))

    def _continued(self, checked: CheckedRecord, link: bytes | None) -> bytes | None:
        """Check a record against the link of the one before, None: unknown; return its own."""
        if checked.record is None:
            return None
        if link is not None and checked.record.previous != link:
            checked.damage = self._damage(
                checked.sequence, f"does not continue record {checked.sequence - 1}"
            )
        if checked.sequence == self._part.last:
            # the task that continues here may rely on the known link instead of this record
            archived_link = self._part.stored.link_before(checked.sequence + 1)
            if archived_link is not None and checked.record.link != archived_link:
                checked.damage = self._damage(checked.sequence, "is not the one that was archived")
        return checked.record.link

    def _missing(self, first: int, last: int) -> Iterator[CheckedRecord]:
        what = "is missing or cannot be read"
        if first < last:
            what = f"and all up to {last} are missing or cannot be read"
        reason = self._part.stored.explain(first)
        if isinstance(reason, CorruptLog):
            what = reason.what
        elif isinstance(reason, CutMeanwhile) and self._lossy:
            return
        elif reason is not None:
            raise reason
        yield CheckedRecord(first, None, None, self._damage(first, what))

    def _damage(self, sequence: int, what: str) -> str:
        """Return a description of damage, with its place if it has a name; raise it if strict."""
        place = self._part.stored.place(sequence)
        if place:
            what = f"{what} ({place})"
        if self._strict:
            raise CorruptLog(sequence, what)
        return what

    def _goes_on(self, held: list[CheckedRecord]) -> bool:
        """Return whether the turn in which the range ends is finished, there or behind it."""
        part = self._part
        damaged = _is_damaged(held)
        if part.last >= part.horizon:
            return damaged
        expected = part.last + 1
        with open_records(part.stored, expected, part.horizon) as behind:
            for sequence, data in behind:
                damaged = damaged or sequence != expected
                expected = sequence + 1
                try:
                    record = frame_of(sequence, data)
                except CorruptLog:  # reported by the task that reads that range
                    damaged = True
                    continue
                if _begins_another(record, held, damaged):
                    return damaged
                if record.last:
                    return True
                damaged = False
        return damaged or expected <= part.horizon


def _intact_link(sequence: int, data: bytes) -> bytes | None:
    """Return the link of a record read by another task; None if it cannot be known."""
    try:
        check_record(sequence, data)
    except (CorruptLog, UnknownLogFormat):
        return None
    return link_of(data)


def _begins_another(record: Record, held: list[CheckedRecord], damaged: bool) -> bool:
    """Return whether a record belongs to another turn than those before it, the first intact.

    ``damaged``: the one directly before is damaged. Then it may have been the first part of that
    turn.
    """
    if record.part == 0 or not damaged:
        return record.part == 0
    first = held[0].record
    return first is not None and record.sequence - record.part != first.sequence - first.part


def _is_damaged(held: list[CheckedRecord]) -> bool:
    """Return whether the last of some records is damaged or missing."""
    return bool(held) and held[-1].record is None


def _turn(held: list[CheckedRecord], anywhere: bool, *, finished: bool) -> list[CheckedRecord]:
    """Return the records of a turn, as void if it did not finish.

    So is a turn without its beginning, unless that may be ``anywhere`` else.
    """
    begins = held[0].record if held else None
    if begins is not None and not (finished and (begins.part == 0 or anywhere)):
        for checked in held:
            checked.void = checked.record is not None
    return held
