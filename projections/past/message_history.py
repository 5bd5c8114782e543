"""The messages of the past: those that took effect and match a filter, from one or several logs.

Messages of several logs are in the order of time; within a log its own order is kept. With an index
only the records that concern the filter are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eventstore.display import log_prefix
from eventstore.errors import CutOff, UsageError, naming_log
from eventstore.format.event_parsing import Event
from eventstore.format.events import LOG_SESSION, MessagePublished, Released
from eventstore.format.positions import (
    INDEX_BITS,
    MAX_INDEX,
    Position,
    format_position,
    index_of,
    position,
    sequence_of,
)
from eventstore.log.message_store import Message, MessageStore
from eventstore.partitions import short_name
from eventstore.reading.log_points import LogPoint, all_until, last_until, time_of
from eventstore.reading.moments import ALL, LAST, NEW, Moment
from eventstore.reading.progress import Progress, silent
from eventstore.reading.publications import (
    Publications,
    Releases,
    awaits_release,
    publications_of,
    with_content,
)
from projections.past.event_reader import EventFilter
from projections.past.merged_events import LogEntry, MergedReader
from projections.past.topic_lookup import Carriers, MessageTopics, topic_matcher
from projections.views.publication_view import PublicationView

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

MAX_TOPICS: Final = 10_000
"""Maximum number of topics of :func:`last_messages`."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of their payloads."""
_CONTENT: Final = 16 * 1024 * 1024
_AT_ONCE: Final = 64
"""Released messages whose content is loaded together."""


# -------------------------------------------------------------------------------------- the range


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A part of each log."""

    starts: Mapping[str, LogPoint]
    ends: Mapping[str, LogPoint]
    start_ms: int | None = None
    end_ms: int | None = None
    """Times between which the messages are: where the clock was set back, others lie between."""
    cut: Sequence[str] = ()
    """The logs of which the beginning of the part was deleted."""

    def has(self, view: PublicationView) -> bool:
        """Return whether a message is in the part."""
        start, end, at = self.starts[view.log], self.ends[view.log], view.position
        if not position(start.sequence, start.index) <= at <= position(end.sequence, end.index):
            return False
        low, high = self.start_ms, self.end_ms
        return (low is None or view.time_ms >= low) and (high is None or view.time_ms <= high)

    def before(self, places: Mapping[str, Position]) -> HistoryRange:
        """Return what comes before some messages, the earliest given ones of some logs."""
        ends = {
            log: _point(min(at - 1, position(self.ends[log].sequence, self.ends[log].index)))
            for log, at in places.items()
            if log in self.ends
        }
        return replace(self, ends={**self.ends, **ends})

    def after(self, places: Mapping[str, Position]) -> HistoryRange:
        """Return what comes after some messages, the latest given ones of some logs."""
        starts = {
            log: _point(max(at + 1, position(self.starts[log].sequence, self.starts[log].index)))
            for log, at in places.items()
            if log in self.ends
        }
        return replace(self, starts={**self.starts, **starts})


def _point(at: Position) -> LogPoint:
    return LogPoint(sequence_of(at), index_of(at))


async def history_range(
    logs: Mapping[str, LogSource], start: Moment | None = None, until: Moment | None = None
) -> HistoryRange:
    """Return the part of each log between two moments; None: from its beginning, to its end.

    A position as the beginning means what comes after it. Raises UsageError for positions that are
    not in the logs, and CutOff if the whole part was deleted.
    """
    starts, ends, cut, ended = {}, {}, list[str](), list[str]()
    for log, source in logs.items():
        with naming_log(log):
            starts[log], is_cut = await _start(logs, log, start)
            ends[log] = await _end(logs, log, until)
            if is_cut:
                cut.append(log)
            if until is not None and source.first > 1 and ends[log].sequence < source.first:
                ended.append(log)
    if ended and len(ended) == len(logs):
        beginnings = "; ".join(log_prefix(log) + logs[log].beginning() for log in ended)
        raise CutOff(f"these records were deleted: {beginnings}")
    start_ms = start.time_ms if start is not None else None
    end_ms = until.time_ms if until is not None else None
    return HistoryRange(starts, ends, start_ms, end_ms, cut)


async def _start(
    logs: Mapping[str, LogSource], log: str, moment: Moment | None
) -> tuple[LogPoint, bool]:
    """Return where a part of a log begins, and whether records are missing there."""
    source = logs[log]
    if moment is None or moment.word in (ALL, LAST):
        return LogPoint(source.begin, 0), False
    if moment.word == NEW:
        return LogPoint(source.last + 1, 0), False
    if moment.time_ms is not None:
        if source.begin > source.last:
            return LogPoint(source.begin, 0), False
        if await time_of(source, source.begin) >= moment.time_ms:
            return LogPoint(source.begin, 0), source.first > 1
        return LogPoint(await last_until(source, moment.time_ms - 1) + 1, 0), False
    after = _position_in(logs, log, moment) + 1
    if max(1, sequence_of(after)) < source.begin:
        return LogPoint(source.begin, 0), True
    after = max(after, position(source.begin, 0))
    return _point(after), False


async def _end(logs: Mapping[str, LogSource], log: str, moment: Moment | None) -> LogPoint:
    source = logs[log]
    if moment is None:
        return LogPoint(source.last)
    if moment.time_ms is not None:
        return LogPoint(await all_until(source, moment.time_ms))
    return _point(_position_in(logs, log, moment))


def _position_in(logs: Mapping[str, LogSource], log: str, moment: Moment) -> Position:
    """Return the position of a moment in a log; raises UsageError."""
    places = moment.positions
    names = {short_name(name): name for name in logs} | {name: name for name in logs}
    strangers = [name for name in places if name and name not in names and "" not in logs]
    if strangers:
        raise UsageError(f"there is no log {strangers[0]}: the logs are {', '.join(logs)}")
    if "" in logs:
        if len(places) > 1:
            raise UsageError("positions in several logs are given, and there is one log")
        (at,) = places.values()
    else:
        named = {names[name]: at for name, at in places.items() if name}
        if log not in named:
            raise UsageError(
                f"a position is one of a log, and there are {len(logs)}: give a time, or one for "
                f"each, such as {','.join(f'{short_name(name)}:12.3' for name in logs)}"
            )
        at = named[log]
    end = logs[log].last
    if sequence_of(at) > end:
        raise UsageError(
            f"position {_shown(at)} is beyond the end of the log, whose last record is {end}"
        )
    return at


def _shown(at: Position) -> str:
    return str(sequence_of(at)) if index_of(at) == MAX_INDEX else format_position(at)


# ----------------------------------------------------------------------------------- the messages


class PublicationFilter(EventFilter):
    """Selects the events by which messages on the topics of a filter take effect."""

    def __init__(self, topic_filter: str) -> None:
        """Raise TopicError if the filter is not valid."""
        super().__init__((MessagePublished, Released), None, topic_filter)

    async def selects(self, event: Event, topics: MessageTopics) -> bool:
        """Return whether an event is selected; may read the log for the topics it concerns."""
        if not isinstance(event, (MessagePublished, Released)):
            return False
        if event.session.startswith(LOG_SESSION):
            return False
        if isinstance(event, MessagePublished) and awaits_release(event):
            return False
        return await super().selects(event, topics)


class MessageContents:
    """The content of messages of a log by position: a bounded cache over the log."""

    def __init__(self, source: LogSource, progress: Progress = silent) -> None:
        self._source = source
        self._store = MessageStore(_CONTENT)
        self._carriers = Carriers(source, progress)

    async def load(self, refs: Sequence[Position]) -> list[Message | None]:
        """Return messages; None for one that the log no longer has.

        Raises CorruptLog or CutMeanwhile.
        """
        messages = {ref: self._store.get(ref) for ref in refs}
        missing = {ref >> INDEX_BITS for ref, message in messages.items() if message is None}
        if missing:
            loaded = MessageStore(1 << 62)
            for record in await self._source.some(sorted(await self._carriers.of(missing))):
                loaded.add_record(record)
                self._store.add_record(record)
            messages = {ref: message or loaded.get(ref) for ref, message in messages.items()}
        return [messages[ref] for ref in refs]


class MessageHistory:
    """Reads the messages that took effect in logs, or in one, and match a topic filter."""

    def __init__(
        self, logs: Mapping[str, LogSource], topic_filter: str, progress: Progress = silent
    ) -> None:
        """Raise TopicError if the filter is not valid."""
        self._matches = topic_matcher(topic_filter)
        self._logs, self._topic_filter, self._progress = logs, topic_filter, progress
        self._reader = self._made()
        self._contents = {log: MessageContents(source, progress) for log, source in logs.items()}

    def _made(self) -> MergedReader:
        return MergedReader(
            self._logs, lambda: PublicationFilter(self._topic_filter), self._progress
        )

    async def between(self, part: HistoryRange) -> AsyncGenerator[PublicationView, None]:
        """Yield the messages of a part, the oldest first.

        Raises CorruptLog, UnreadableEvent or CutMeanwhile.
        """
        entries = self._reader.entries(part.starts, part.ends, ended=False)
        async with contextlib.aclosing(entries) as events:
            async for entry in events:
                async for view in self._views(entry):
                    if part.has(view):
                        yield view

    async def latest(self, count: int, part: HistoryRange) -> list[PublicationView]:
        """Return the last messages of a part, the oldest of them first; raises as ``between``."""
        begins = {log: start.sequence for log, start in part.starts.items()}
        events = count
        while True:
            self._reader = self._made()
            entries = await self._reader.latest(events, part.ends, ended=False, begins=begins)
            views = [view for entry in entries async for view in self._views(entry)]
            views = [view for view in views if part.has(view)]
            if len(views) >= count or len(entries) < events:
                return views[-count:]
            events *= 2

    async def new(self, missed: Callable[[str, int], object]) -> AsyncIterator[PublicationView]:
        """Yield the messages since the last call; see ``MergedReader.new_entries``."""
        async for entry in self._reader.new_entries(missed):
            async for view in self._views(entry):
                yield view

    async def _views(self, log_entry: LogEntry) -> AsyncIterator[PublicationView]:
        """Yield the messages that take effect with an event."""
        log, entry = log_entry
        if entry.void or entry.record is None:
            return
        for item in publications_of(entry.record, entry.event, entry.at, self._matches):
            if isinstance(item, Publications):
                for view in _rows(log, item, entry.jumped_ms):
                    yield view
            elif isinstance(item, Releases):
                async for messages in self._released(log, item):
                    for view in _rows(log, messages, entry.jumped_ms):
                        if self._matches(view.topic):
                            yield view

    async def _released(self, log: str, releases: Releases) -> AsyncIterator[Publications]:
        """Yield released messages with their content, as far as the log has it."""
        for start in range(0, len(releases.refs), _AT_ONCE):
            refs = releases.refs[start : start + _AT_ONCE]
            with naming_log(log):
                messages = await self._contents[log].load(refs)
            present = [
                (at, message) for at, message in enumerate(messages, start) if message is not None
            ]
            part = Releases(
                releases.session,
                [releases.positions[at] for at, _ in present],
                [releases.refs[at] for at, _ in present],
                releases.time_ms,
                releases.steady_ms,
            )
            for publications in with_content(part, [message for _, message in present]):
                yield publications


def _rows(log: str, messages: Publications, jumped_ms: int) -> Sequence[PublicationView]:
    blocks, expires = messages.blocks, messages.expires
    return [
        PublicationView(
            log,
            at,
            messages.time_ms,
            messages.topics[number].decode(),
            messages.qos,
            messages.retain,
            messages.session,
            messages.payloads[number],
            blocks[number] if blocks else b"",
            expires[number] + jumped_ms // 1000 if expires and expires[number] else 0,
            messages.will,
        )
        for number, at in enumerate(messages.positions)
    ]


async def last_messages(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    part: HistoryRange,
    progress: Progress = silent,
) -> list[PublicationView]:
    """Return the last message on each topic in a part of the logs, by topic.

    Unlike retained messages these include messages published without RETAIN, and empty ones, which
    clear a retained message. Raises UsageError if there are too many, and as
    :meth:`MessageHistory.between`.
    """
    history = MessageHistory(logs, topic_filter, progress)
    if "+" not in topic_filter and "#" not in topic_filter:
        return await history.latest(1, part)
    latest: dict[str, PublicationView] = {}
    size = 0
    async with contextlib.aclosing(history.between(part)) as views:
        async for view in views:
            before = latest.get(view.topic)
            size += view.size - (before.size if before is not None else 0)
            latest[view.topic] = view
            if len(latest) > MAX_TOPICS:
                raise UsageError(f"more than {MAX_TOPICS:,} topics: give a narrower filter")
            if size > MAX_BYTES:
                raise UsageError(f"more than {MAX_BYTES >> 20} MiB: give a narrower filter")
    return [latest[topic] for topic in sorted(latest)]
