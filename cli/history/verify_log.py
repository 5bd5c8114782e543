"""``foldmq log verify``: whether every record is there, in order, intact and readable."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.common import text
from cli.common.gc_pause import few_collections
from cli.common.progress import progress
from cli.history.checkpoint_check import Agreement
from cli.logsource.source import Source, check_noted, open_source
from cli.logsource.source_flags import SourceFlags
from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format import (
    GENESIS,
    ChainChecker,
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    MessagesCarried,
    Queued,
    Record,
    Released,
    RetainedSnapshot,
    UnreadableEvent,
    WillArmed,
    count_runs,
    decode_record,
    entries,
)
from eventstore.log import LostBeginning, RecordedCut, check_beginning, check_first, find_cut

_UPDATE_EVERY = 16
_MOST_PROBLEMS = 100


class Verifier:
    """Takes what is stored, in order, and tells what is wrong; goes on behind what is."""

    def __init__(
        self,
        tell: Callable[[int, str], None],
        noted: tuple[int, bytes] | None,
        begin: int = 1,
        cut: RecordedCut | None = None,
    ) -> None:
        """Call ``tell(sequence, what)`` for every problem.

        ``begin`` is the first sequence that there is, ``cut`` the newest cut of a log that does
        not begin with record 1.
        """
        self.records = 0
        self.entries = 0
        self.void = 0
        """Parts of turns that never were complete: no client was told of them."""
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self._tell = tell
        self._noted = noted
        self._chain: ChainChecker | None = ChainChecker() if begin == 1 else None
        self._next = begin
        self._agreement = Agreement(tell, begin)
        self._check_beginning(begin, cut)
        self._node: str | None = None
        self._parts = 0
        """Parts held of a turn that is not complete."""

    def take(self, sequence: int, data: bytes) -> None:
        """Check what is stored under the next sequence that there is."""
        if sequence != self._next:
            self._gap(self._next, sequence - 1)
        self._next = sequence + 1
        try:
            record = decode_record(sequence, data)
        except CorruptLog as error:
            self._tell(sequence, error.what)
            self._lose_track(sequence)
            return
        except UnknownLogFormat as error:
            self._tell(sequence, str(error))
            self._lose_track(sequence)
            return
        self._check_place(record)
        self._check_part(record)
        self._check_events(record)
        self.records += 1
        if self.first_ms is None:
            self.first_ms = record.time_ms
        self.last_ms = record.time_ms

    def end(self, last: int) -> None:
        """Check that the log reaches as far as it must."""
        self.skip(last)
        if self._unknown_from:
            self._tell(self._unknown_from, "begins the log, and no whole checkpoint follows it")
        if self._noted is not None and self._noted[0] >= self._next:
            self._gap(self._next, self._noted[0])

    def begin_again(self, begin: int, cut: RecordedCut | None) -> None:
        """Take note that the broker has cut the log before a record that is to come."""
        self._lose_track(begin - 1)
        self._next = begin
        self._check_beginning(begin, cut)

    def skip(self, last: int) -> None:
        """Take note that nothing more is stored up to a sequence."""
        if self._next <= last:
            self._gap(self._next, last)
            self._next = last + 1

    def unfinished(self) -> int:
        """Return how many parts of a turn stand at the end without its last one."""
        return self._parts

    def _gap(self, first: int, last: int) -> None:
        what = "is missing or cannot be read"
        if last > first:
            what = f"and all up to {last} ({last - first + 1:,} records) are missing"
        self._tell(first, what)
        self._lose_track(last)

    def _lose_track(self, sequence: int) -> None:
        self._chain = None
        self._parts = 0
        self._unknown_from = 0
        self._agreement.lose_track(sequence)

    def _check_beginning(self, begin: int, cut: RecordedCut | None) -> None:
        self._cut = cut
        self._unknown_from = begin if begin > 1 else 0
        try:
            check_beginning(begin, cut)
        except LostBeginning as error:
            self._tell(error.sequence, error.what)

    def _check_place(self, record: Record) -> None:
        try:
            if self._chain is not None:
                self._chain.check(record)
            else:
                check_first(record, self._cut)
            if self._noted is not None:
                check_noted(self._noted, record)
        except CorruptLog as error:
            self._tell(record.sequence, error.what)
        if record.sequence == 1 and self._chain is None and record.previous != GENESIS:
            self._tell(1, "does not begin a log")
        if self._node is not None and record.node != self._node:
            self._tell(record.sequence, f"is of another node, {text.name(record.node)}")
        self._node = record.node
        self._chain = ChainChecker(record.sequence, record.link)

    def _check_part(self, record: Record) -> None:
        if record.part == 0:
            self.void += self._parts
            self._parts = 0
        elif record.part != self._parts:
            self._tell(
                record.sequence, f"is part {record.part} of a turn, part {self._parts} is missing"
            )
            self._parts = record.part
        self._parts = 0 if record.last else self._parts + 1

    def _check_events(self, record: Record) -> None:
        area = len(record.payload)
        seen = 0
        event: Event | None = None
        events: list[tuple[int, Event]] = []
        problem = False
        try:
            for seen, event in record.events():
                events.append((seen, event))
                check = _CHECKS.get(type(event))
                what = check(event, area) if check is not None else None
                if what is not None:
                    self._tell(record.sequence, f"entry {seen}: event {event.e}: {what}")
                    problem = True
        except UnreadableEvent as error:
            said = str(error).removeprefix(f"record {record.sequence}, ")
            self._tell(record.sequence, f"cannot be read: {said}")
            problem = True
        if problem:
            self._unknown_from = 0
            self._agreement.lose_track(record.sequence)
        else:
            self._agreement.take(record, events)
            if self._unknown_from and not self._agreement.partial:
                self._unknown_from = 0
        self.entries += seen + (entries(event) if event is not None else 0)


_LENGTHS = "its columns differ in length"


def _check_published(event: MessagePublished, area: int) -> str | None:
    count, sizes, which = event.count, event.sizes, event.which
    if (
        count < 1
        or (isinstance(sizes, list) and len(sizes) != count)
        or (which and len(which) != count)
        or (event.pids and count_runs(event.pids) != count)
    ):
        return _LENGTHS
    topics = len(event.topics)
    if not topics or (which and not 0 <= min(which) <= max(which) < topics):
        return "a topic is missing"
    size = sizes * count if isinstance(sizes, int) else sum(sizes)
    if not 0 <= event.at <= event.at + size <= area:
        return "its payloads are not in the record"
    return None


def _check_repeated(event: MessagesCarried | RetainedSnapshot, area: int) -> str | None:
    count, sizes = event.count, event.sizes
    if (
        count < 1
        or (isinstance(sizes, list) and len(sizes) != count)
        or count_runs(event.refs) != count
    ):
        return _LENGTHS
    size = sizes * count if isinstance(sizes, int) else sum(sizes)
    if not 0 <= event.at <= event.at + size <= area:
        return "its payloads are not in the record"
    return None


def _check_retained(event: RetainedSnapshot, area: int) -> str | None:
    if not len(event.topics) == len(event.qos) == event.count:
        return _LENGTHS
    return _check_repeated(event, area)


def _check_carried(event: MessagesCarried, area: int) -> str | None:
    which, topics = event.which, len(event.topics)
    if which and len(which) != event.count:
        return _LENGTHS
    if not topics or (which and not 0 <= min(which) <= max(which) < topics):
        return "a topic is missing"
    return _check_repeated(event, area)


def _check_will(event: WillArmed, area: int) -> str | None:
    inside = 0 <= event.at <= event.at + event.size <= area
    return None if inside else "its payload is not in the record"


def _check_columns(event: Delivered | Released, _area: int) -> str | None:
    return None if count_runs(event.pids) == count_runs(event.refs) else _LENGTHS


def _check_dropped(event: MessageDropped, _area: int) -> str | None:
    return _LENGTHS if event.refs and count_runs(event.refs) != event.count else None


def _check_queued(event: Queued, _area: int) -> str | None:
    return None if event.refs else "it names no message"


_CHECKS: dict[type, Callable[[Any, int], str | None]] = {
    MessagePublished: _check_published,
    WillArmed: _check_will,
    Delivered: _check_columns,
    Released: _check_columns,
    MessageDropped: _check_dropped,
    Queued: _check_queued,
    MessagesCarried: _check_carried,
    RetainedSnapshot: _check_retained,
}
"""What tells of an event which of its parts do not fit together; given the size in bytes of the
record's payload area."""


@dataclass(slots=True)
class _Problems:
    """Prints problems as they are found."""

    count: int = 0

    def __call__(self, sequence: int, what: str) -> None:
        self.count += 1
        if self.count <= _MOST_PROBLEMS:
            sys.stdout.write(f"record {sequence} {what}\n")
        elif self.count == _MOST_PROBLEMS + 1:
            sys.stdout.write("and more, which are only counted\n")


def run(flags: SourceFlags, *, as_json: bool = False) -> bool:
    """Check the log, print what is wrong and a summary; return whether all is well."""
    return asyncio.run(_run(flags, as_json=as_json))


async def _run(flags: SourceFlags, *, as_json: bool) -> bool:
    problems: list[dict[str, object]] = []
    printed = _Problems()

    def tell(sequence: int, what: str) -> None:
        if not as_json:
            printed(sequence, what)
        elif len(problems) < _MOST_PROBLEMS:
            problems.append({"record": sequence, "what": what})
            printed.count += 1
        else:
            printed.count += 1

    async with open_source(flags) as source:
        verifier = Verifier(tell, source.noted, source.begin, source.cut)
        await _read(source, verifier)
        where = source.where
        if source.cut is not None and not as_json:
            sys.stdout.write(source.beginning() + "\n")
    if as_json:
        times = {
            key: None if value is None else text.iso(value)
            for key, value in (("from", verifier.first_ms), ("to", verifier.last_ms))
        }
        found = {"records": verifier.records, "entries": verifier.entries, **times}
        found["first_record"] = source.begin
        rest = {"void_parts": verifier.void, "problems": printed.count, "listed": problems}
        sys.stdout.write(text.json_line({**found, **rest}) + "\n")
    else:
        sys.stdout.write(summary(verifier, printed.count, where) + "\n")
    return not printed.count


async def _read(source: Source, verifier: Verifier) -> None:
    last = source.last
    with few_collections(), progress("verifying", last) as update:
        position = source.begin
        while position <= last:
            before = position
            async for sequence, data in source.stored(position, last):
                if sequence != position and source.live:
                    await _check_cut(source, position, verifier)
                verifier.take(sequence, data)
                position = sequence + 1
                if sequence % _UPDATE_EVERY == 0:
                    update(sequence)
            if position == before:  # the server gives nothing from here: look behind it
                position += 1
        verifier.end(last)


async def _check_cut(source: Source, position: int, verifier: Verifier) -> None:
    """Find out whether a record is missing because the broker has cut the log meanwhile."""
    first, last = await source.bounds()
    if first > position:
        cut = await find_cut(source.stored, first, last)
        verifier.begin_again(first, cut)


def summary(verifier: Verifier, problems: int, where: str) -> str:
    """Return the last line: how much was read and whether it is right."""
    read = (
        f"{text.counted(verifier.records, 'record')}, {verifier.entries:,} "
        f"{'entry' if verifier.entries == 1 else 'entries'}"
    )
    if verifier.first_ms is not None and verifier.last_ms is not None:
        read += f", from {text.clock(verifier.first_ms)} to {text.clock(verifier.last_ms)}"
    if verifier.void:
        read += f"; {text.counted(verifier.void, 'part')} of turns that were never complete"
    if problems:
        return f"damaged: {text.counted(problems, 'problem')} in the log of {where}; read {read}"
    return f"intact: {read}"
