"""Plans the ranges to read from each log by positions, times and filters, and splits them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from eventstore.display import escaped
from eventstore.errors import CorruptLog, CutOff
from eventstore.format.positions import MAX_INDEX, index_of, sequence_of
from eventstore.format.records import Record
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from spark.runtime.marked_errors import BadOption, name_log_in_errors
from spark.tables.options import SourceOptions
from spark.tables.point_options import EARLIEST, LATEST
from spark.tables.record_frames import frame_of
from spark.tables.row_filter import PushedFilters
from spark.tables.stored_log import RecordRange, StoredLog, open_records

_PARTITION_BYTES: Final = 32 << 20
_SHUFFLED_BYTES: Final = 2 << 20
_MAX_SHUFFLED: Final = 10_000
_FEW_TASKS: Final = 8
"""Number of tasks for many small logs: each task has a cost, however little it reads."""
_NEAR: Final = 64
_LISTED: Final = 10


def plan_ranges(
    stored_logs: Iterable[StoredLog], options: SourceOptions, pushed: PushedFilters
) -> list[RecordRange]:
    """Return the ranges to read from each log, omitting empty ones.

    Raises as :func:`plan_log`, and BadOption if an option names a log that is not among them.
    """
    logs = list(stored_logs)
    names = [stored.stream for stored in logs]
    options.starting.reject(LATEST, "only a stream begins there, a batch would read nothing")
    for option, moments in (
        ("until", options.until),
        ("from", options.start),
        (options.starting.name, options.starting),
        (options.ending.name, options.ending),
    ):
        check_named(option, moments.each, names)
    planned = (plan_log(stored, options, pushed) for stored in logs)
    return [part for part in planned if part is not None]


def check_named(option: str, named: Iterable[str], logs: Collection[str]) -> None:
    """Raise BadOption if an option names a log that is not read."""
    for name in named:
        if name not in logs and LOG_STREAM_PREFIX + name not in logs:
            listed = ", ".join(sorted(logs)[:_LISTED]) + (", ..." if len(logs) > _LISTED else "")
            raise BadOption(
                f"{option} names log {escaped(name)}, which is not read: there is {listed}"
            )


def plan_log(
    stored: StoredLog, options: SourceOptions, pushed: PushedFilters
) -> RecordRange | None:
    """Return the range to read from a log; None if it is empty.

    Raises CutOff for a position in a part of the log that was cut off, BadOption for one beyond its
    end.
    """
    with name_log_in_errors(stored.stream):
        return _planned(stored, options, pushed)


def _planned(
    stored: StoredLog, options: SourceOptions, pushed: PushedFilters
) -> RecordRange | None:
    whole = RecordRange(stored, stored.first, stored.last, stored.last)
    if stored.last < stored.first or pushed.excludes(stored.stream):
        return None
    times = RecordTimes(stored)
    part = _since(_until(whole, options, times), options, times)
    skew_ms = options.clock_skew_ms
    first = max(part.first, pushed.first_sequence)
    last_record = (
        part.last if pushed.last_sequence is None else min(part.last, pushed.last_sequence)
    )
    if pushed.since_ms is not None and first <= last_record:
        first = max(first, times.last_until(pushed.since_ms - skew_ms - 1) + 1)
    if pushed.until_ms is not None and first <= last_record:
        last_record = min(last_record, times.all_until(pushed.until_ms + skew_ms))
    return replace(part, first=first, last=last_record) if first <= last_record else None


def _until(part: RecordRange, options: SourceOptions, times: RecordTimes) -> RecordRange:
    stored = part.stored
    offset = options.ending.of(stored.stream)
    if offset is not None and offset != LATEST:
        last_record = offset - 1
        _check_within(options.ending.name, str(offset), last_record, stored, options)
        return replace(part, last=last_record, horizon=last_record)
    moment = options.until.of(stored.stream)
    if moment is None:
        return part
    if moment.position is None:
        last_record = times.last_until(moment.time_ms or 0)
        return replace(part, last=last_record, horizon=last_record)
    last_record = sequence_of(moment.position)
    _check_within("until", moment.text, last_record, stored, options)
    whole = index_of(moment.position) == MAX_INDEX
    return replace(
        part, last=last_record, horizon=last_record, until=None if whole else moment.position
    )


def _since(part: RecordRange, options: SourceOptions, times: RecordTimes) -> RecordRange:
    stored = part.stored
    offset = options.starting.of(stored.stream)
    if offset is not None and offset != EARLIEST:
        if offset != stored.last + 1:
            _check_within(options.starting.name, str(offset), offset, stored, options)
        return replace(part, first=max(part.first, offset))
    moment = options.start.of(stored.stream)
    if moment is None:
        return part
    if moment.position is None:
        first = times.last_until((moment.time_ms or 0) - 1) + 1
        return replace(part, first=max(part.first, first))
    first = sequence_of(moment.position)
    _check_within("from", moment.text, first, stored, options)
    return replace(part, first=max(part.first, first), start=moment.position)


def _check_within(
    option: str, text: str, sequence: int, stored: StoredLog, options: SourceOptions
) -> None:
    if sequence > stored.last:
        raise BadOption(
            f"{option} = {text} is beyond the end of log {stored.stream}, whose last record is "
            f"{stored.last}"
        )
    lost = sequence < stored.first and stored.first > 1 and (sequence or option == "until")
    if lost and options.fail_on_data_loss:
        raise CutOff(
            f"{option} = {text}: log {stored.stream} begins with record {stored.first}, what was "
            "before it was cut off; failOnDataLoss=false reads what is left"
        )


class RecordTimes:
    """The times of a log's records, looked up when needed."""

    def __init__(self, stored: StoredLog) -> None:
        self._stored = stored
        self._found: list[tuple[int, int]] | None = None

    def last_until(self, time_ms: int) -> int:
        """Return the last record before the time of the log exceeds a time.

        It is the one before the first record if that is later, see
        :func:`eventstore.reading.log_points.last_until`. In logs of versions that did not
        record jumps of the clock it is one of the records followed by a later one.
        """
        for first, last in self._spans():
            if self.of(last) > time_ms:
                return self._between(first - 1, last, time_ms)
        return self._stored.last

    def all_until(self, time_ms: int) -> int:
        """Return the last of all records that are not later than a time.

        Differs from :meth:`last_until` where the clock was set back.
        """
        for first, last in reversed(self._spans()):
            record = self._between(first - 1, last, time_ms)
            if record >= first:
                return record
        return self._stored.first - 1

    def _spans(self) -> Sequence[tuple[int, int]]:
        """Return the first and last record of each part of the log between jumps of its clock."""
        if self._found is None:
            self._found, last = [], self._stored.last
            while last >= self._stored.first:
                frame = self._frame(last)
                first = max(self._stored.first, frame.jumps.record)
                self._found.insert(0, (first, last))
                last = first - 1
        return self._found

    def _between(self, low: int, high: int, time_ms: int) -> int:
        if len(self._spans()) == 1:
            low, high = self._stored.around(time_ms)
        while low < high:
            middle = (low + high + 1) // 2
            if self.of(middle) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def of(self, sequence: int) -> int:
        """Return the time of a record, Unix time in milliseconds.

        For an unreadable record it is that of one shortly behind it; raises CorruptLog if none of
        those can be read.
        """
        return self._frame(sequence).time_ms

    def _frame(self, sequence: int) -> Record:
        frame = self._first(sequence, sequence)
        if frame is None:
            frame = self._first(sequence + 1, min(sequence + _NEAR, self._stored.last))
        if frame is None:
            frame = self._first(max(self._stored.first, sequence - _NEAR), sequence - 1)
        if frame is None:
            raise CorruptLog(sequence, "is missing or cannot be read")
        return frame

    def _first(self, first: int, last: int) -> Record | None:
        """Return the first readable record of a range, without its events."""
        with open_records(self._stored, first, last) as records:
            for sequence, data in records:
                with suppress(CorruptLog):
                    return frame_of(sequence, data)
        return None


def split_ranges(ranges: Sequence[RecordRange], count_wanted: int | None) -> list[RecordRange]:
    """Split ranges into the wanted number of partitions, or into some 32 MiB each."""
    sizes = [bytes_of(part) for part in ranges]
    total = sum(sizes)
    parts: list[RecordRange] = []
    for part, size in zip(ranges, sizes, strict=True):
        if count_wanted is None:
            count = -(-size // _PARTITION_BYTES)
        else:
            count = round(count_wanted * size / max(1, total))
        parts += _pieces(part, max(1, count))
    return parts


def group_ranges(
    parts: Sequence[RecordRange], count_wanted: int | None
) -> list[tuple[RecordRange, ...]]:
    """Return the ranges of each task: a single one, or many small logs together."""
    ranges = Counter(part.stored.stream for part in parts)
    small = [part for part in parts if ranges[part.stored.stream] == 1]
    tasks = max(count_wanted or _FEW_TASKS, -(-sum(map(bytes_of, small)) // _PARTITION_BYTES))
    each = max(1, -(-len(small) // tasks))
    return [
        *((part,) for part in parts if ranges[part.stored.stream] > 1),
        *(tuple(small[at : at + each]) for at in range(0, len(small), each)),
    ]


def shuffle_partitions(ranges: Iterable[RecordRange], cores: int) -> int:
    """Return the number of partitions into which data of the size of some ranges is shuffled.

    Each core gets two, but none less than 2 MiB or more than 32 MiB of the log.
    """
    total = sum(map(bytes_of, ranges))
    small = -(-total // _SHUFFLED_BYTES)
    return min(_MAX_SHUFFLED, max(1, -(-total // _PARTITION_BYTES), min(2 * cores, small)))


def bytes_of(part: RecordRange) -> int:
    """Return the approximate stored bytes of a range."""
    stored = part.stored
    return stored.size * (part.last - part.first + 1) // (stored.last - stored.first + 1)


def _pieces(part: RecordRange, count: int) -> Iterator[RecordRange]:
    records = part.last - part.first + 1
    count = min(count, records)
    firsts = {part.first + records * number // count for number in range(count)}
    if borders := part.stored.borders:
        inside = [part.first, *(border for border in borders if part.first < border <= part.last)]
        firsts = {_nearest(inside, at) for at in firsts}
    ordered = sorted(firsts)
    for first, following in zip(ordered, [*ordered[1:], part.last + 1], strict=True):
        yield replace(part, first=first, last=following - 1)


def _nearest(borders: Sequence[int], sequence: int) -> int:
    """Return the border, of some in ascending order, that is nearest to a sequence."""
    at = bisect_left(borders, sequence)
    return min(borders[max(0, at - 1) : at + 1], key=lambda border: abs(border - sequence))
