"""Logs in memory with an index in files."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from harness.logs import LogBuilder
from playedlogs import FakeSource
from randomnode import Node

from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.records import Record, mentions
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.log_start import RecordedCut
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from projections.past.event_reader import EventEntry, EventFilter, EventReader
from projections.past.message_story import MessageStory
from projections.past.segment_builder import SegmentBuilder

STREAM = "FOLDMQ_LOG_n"


class IndexedSource(FakeSource):
    """A log in memory that may have an index; its first record shows whether it was cut."""

    def __init__(self, node: Node, first: int = 1, cut_at: int = 0) -> None:
        super().__init__(node, first)
        self.stream = STREAM
        self.cut_at = cut_at
        self.cut: RecordedCut | None = None
        self.read = 0

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        for sequence in range(first, last + 1):
            self.read += 1
            record = self.record(sequence)
            self.seen.take(first, record)
            yield record

    def require_whole(self) -> None:
        """Do nothing: it begins where it may."""

    def beginning(self) -> str:
        return f"the log begins with record {self.first}"

    async def records_with(
        self, words: Sequence[bytes], progressed: Callable[[int], None]
    ) -> AsyncIterator[Record]:
        for sequence in range(self.begin, self.cut_at + 1):
            if mentions(self._data[sequence], words):
                yield self.record(sequence)
            progressed(sequence)


def node_of(records: Sequence[bytes]) -> Any:
    """A node with a log that was written by hand."""
    stored = [
        SimpleNamespace(sequence=sequence, data=data) for sequence, data in enumerate(records, 1)
    ]
    return SimpleNamespace(log=SimpleNamespace(records=stored))


def written(
    records: Sequence[bytes], path: Path, indexed: float = 0, first: int = 1
) -> IndexedSource:
    """A log that was written by hand, and may begin with a later record; a share is indexed."""
    source = IndexedSource(node_of(records), first, first)
    last = round(indexed * source.last)
    return use(source, build(source, path, last, 1)) if last >= first else source


def turns_written(path: Path, indexed: float, *turns: list[Event]) -> IndexedSource:
    """A log with a record each second; a share of it is indexed."""
    log = LogBuilder("n", step_ms=1000)
    for events in turns:
        messages = [event for event in events if isinstance(event, MessagePublished)]
        log.record(*events, payloads=[b"on" * event.count for event in messages])
    return written(log.records, path, indexed)


def as_log(source: IndexedSource) -> LogSource:
    return cast("LogSource", source)


def build(
    source: IndexedSource, path: Path, last: int, step: int, *, restart: bool = False
) -> IndexFiles:
    """Index a log up to a record, `step` records or a little more in a segment.

    `restart`: each segment is made by another process.
    """
    files = IndexFiles(path)
    files.path.mkdir(exist_ok=True)
    files.open(source.stream)
    builder = _builder(source, files)
    for sequence in range(builder.next, last + 1):
        builder.take(source.record(sequence))
        if builder.records >= step:
            files.append(*builder.finish())
            if restart and builder.next == sequence + 1:
                builder = _builder(source, files)
            else:
                builder.adopt(LogIndex(files.segments, source.begin))
    if builder.records:
        files.append(*builder.finish())
    return files


def _builder(source: IndexedSource, files: IndexFiles) -> SegmentBuilder:
    index = LogIndex(files.segments, source.begin)
    return SegmentBuilder(source.stream, source.begin, index, files.head)


def use(source: IndexedSource, files: IndexFiles) -> IndexedSource:
    """Let a log be read with an index."""
    head = files.head
    if head is not None and head.last >= source.begin:
        source.index = LogIndex(files.segments, source.begin)
    return source


def told(stories: list[MessageStory]) -> list[Any]:
    """What is to be compared of stories."""
    return [
        (_values(story, "copies"), [_values(copy, "story") for copy in story.copies])
        for story in stories
    ]


def _values(item: Any, left_out: str) -> list[Any]:
    return [getattr(item, each.name) for each in fields(item) if each.name != left_out]


async def listed(source: IndexedSource, selected: EventFilter, start: int) -> list[Any]:
    reader = EventReader(as_log(source), selected)
    turns = TurnAssembler(anywhere=True)
    end = LogPoint(source.last)
    found: list[EventEntry] = [
        one async for one in reader.entries(LogPoint(start, 0), end, turns, ended=True)
    ]
    return [(one.at, one.time_ms, one.event, one.void) for one in found]
