"""Clients that stopped publishing, holes in the messages of a topic, and counts of topics.

An interval between messages counts from a second on: shorter ones are within a burst. The usual
interval is the median of the last ones. A hole is longer than :data:`FACTOR` of these. Its cause is
what took most of it: the broker was stopped, the client was away, or it was connected and silent.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop, nlargest
from statistics import median
from typing import TYPE_CHECKING, Final

from eventstore.errors import UsageError, naming_log
from eventstore.format.events import SessionClosed, SessionExpired, SessionOpened
from eventstore.format.node_events import BrokerStarted
from eventstore.format.positions import Position, position, sequence_of
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.keys import LIFECYCLE
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import time_of
from projections.past.message_history import HistoryRange, MessageHistory
from projections.views.publication_view import PublicationView
from projections.views.silence_view import GapView, PauseView, SilenceView, TopicView

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

FACTOR: Final = 3
"""A hole is longer than so many usual intervals."""
LEAST_MESSAGES: Final = 5
"""Messages, bursts counted once, without which no interval is usual."""
SHORTEST_MS: Final = 1000
MAX_NAMES: Final = 10_000
"""Maximum number of clients, or of topics."""
_RECENT: Final = 100
_HOLES: Final = 20
"""Intervals and holes that are kept for each client or topic."""
_RUNNING: Final = "LimitsApplied"
"""An event that each start of a broker has, and that the index lists."""


@dataclass(slots=True, order=True)
class _Mark:
    """A message without its content."""

    time_ms: int
    position: Position
    log: str
    client: str
    topic: str
    will: bool


@dataclass(slots=True)
class _Rhythm:
    """The messages of a client or a topic."""

    last: _Mark
    """The last message."""
    messages: int = 1
    bursts: int = 1
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    holes: list[tuple[int, _Mark, _Mark]] = field(default_factory=list)
    """The longest intervals, a heap."""

    def take(self, mark: _Mark) -> None:
        """Count the next message."""
        self.messages += 1
        length = mark.time_ms - self.last.time_ms
        if length >= SHORTEST_MS:
            self.bursts += 1
            self.recent.append(length)
            hole = length, self.last, mark
            if len(self.holes) < _HOLES:
                heappush(self.holes, hole)
            else:
                heappushpop(self.holes, hole)
        self.last = mark

    @property
    def usual_ms(self) -> int:
        """The usual interval; 0: there were too few messages."""
        return round(median(self.recent)) if self.bursts >= LEAST_MESSAGES else 0


async def silent_clients(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    part: HistoryRange,
    now_ms: int,
    limit: int,
) -> list[SilenceView]:
    """Return the clients that are silent for long at the end of a part, the longest first.

    ``now_ms`` is the end of a part that has none. Raises UsageError if there are too many clients,
    and as ``MessageHistory.between``.
    """
    rhythms = await _rhythms(logs, topic_filter, part, by_client=True)
    ends = await _ends(logs, part, now_ms)
    silent = []
    for rhythm in rhythms.values():
        mark, usual = rhythm.last, rhythm.usual_ms
        length = ends[mark.log] - mark.time_ms
        if usual and length > FACTOR * usual:
            silent.append((length, rhythm))
    chosen = [rhythm for _, rhythm in nlargest(limit, silent, key=lambda item: item[0])]
    presences = await _presences(logs, [item.last for item in chosen], part, now_ms)
    return [
        SilenceView(
            rhythm.last.log,
            rhythm.last.client,
            rhythm.last.topic,
            rhythm.last.position,
            rhythm.messages,
            rhythm.usual_ms,
            presences[rhythm.last.log].pause(rhythm.last, ends[rhythm.last.log]),
        )
        for rhythm in chosen
    ]


async def gaps(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    part: HistoryRange,
    now_ms: int,
    limit: int,
) -> list[GapView]:
    """Return the longest holes in the messages of each topic of a part, in the order of time.

    The time since the last message is one of them. Raises as :func:`silent_clients`.
    """
    rhythms = await _rhythms(logs, topic_filter, part, by_client=False)
    ends = await _ends(logs, part, now_ms)
    holes: list[tuple[int, _Mark, _Mark | None, int]] = []
    for rhythm in rhythms.values():
        usual = rhythm.usual_ms
        if not usual:
            continue
        own: list[tuple[int, _Mark, _Mark | None]] = [*rhythm.holes]
        own.append((ends[rhythm.last.log] - rhythm.last.time_ms, rhythm.last, None))
        holes += [
            (length, before, after, usual)
            for length, before, after in own
            if length > FACTOR * usual
        ]
    chosen = nlargest(limit, holes, key=lambda item: item[0])
    presences = await _presences(logs, [before for _, before, _, _ in chosen], part, now_ms)
    views = [
        GapView(
            before.log,
            before.topic,
            before.client,
            before.position,
            after.position if after is not None else None,
            usual,
            presences[before.log].pause(
                before, after.time_ms if after is not None else ends[before.log]
            ),
        )
        for _, before, after, usual in chosen
    ]
    cuts = [await _cut(logs[log], log, part) for log in logs if _begins_cut(logs[log], log, part)]
    return [*cuts, *sorted(views, key=lambda gap: gap.pause.start_ms)]


def _begins_cut(source: LogSource, log: str, part: HistoryRange) -> bool:
    return log in part.cut or (
        source.first > 1 and part.start_ms is None and part.starts[log].sequence == source.begin
    )


async def _cut(source: LogSource, log: str, part: HistoryRange) -> GapView:
    """Return the part of a log that was cut off."""
    with naming_log(log):
        end_ms = await time_of(source, source.begin)
    start_ms = end_ms if part.start_ms is None else min(part.start_ms, end_ms)
    pause = PauseView(start_ms, end_ms, "log_cut")
    return GapView(log, "", "", None, position(source.begin, 0), 0, pause)


async def topic_counts(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    part: HistoryRange,
    levels: int = 0,
) -> list[TopicView]:
    """Return the topics of a part with their messages, by name; raises as :func:`silent_clients`.

    ``levels`` is the number of topic levels to group by; 0: all.
    """
    counts: dict[str, tuple[int, int, int]] = {}
    history = MessageHistory(logs, topic_filter)
    async with contextlib.aclosing(history.between(part)) as views:
        async for view in views:
            count, size, _ = counts.get(view.topic, (0, 0, 0))
            counts[view.topic] = count + 1, size + view.size, view.time_ms
            _check_few(counts, "topics")
    groups: dict[str, TopicView] = {}
    for topic in sorted(counts):
        count, size, last_ms = counts[topic]
        parts = topic.split("/", levels) if levels else []
        name = "/".join([*parts[:levels], "#"]) if len(parts) > levels else topic
        group = groups.get(name)
        if group is not None:
            count, size = group.messages + count, group.bytes + size
            last_ms = max(group.last_ms, last_ms)
        topics = group.topics + 1 if group is not None else 1
        groups[name] = TopicView(name, count, size, topics, last_ms)
    return [groups[name] for name in sorted(groups)]


def _check_few(names: Mapping[str, object], what: str) -> None:
    if len(names) > MAX_NAMES:
        raise UsageError(f"more than {MAX_NAMES:,} {what}: give a narrower filter")


def _mark(view: PublicationView) -> _Mark:
    return _Mark(view.time_ms, view.position, view.log, view.publisher, view.topic, view.will)


async def _rhythms(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    part: HistoryRange,
    *,
    by_client: bool,
) -> dict[str, _Rhythm]:
    """Return the intervals of the clients, or of the topics."""
    rhythms: dict[str, _Rhythm] = {}
    history = MessageHistory(logs, topic_filter)
    async with contextlib.aclosing(history.between(part)) as views:
        async for view in views:
            if by_client and view.will:
                continue  # the broker published it
            name = view.publisher if by_client else view.topic
            rhythm = rhythms.get(name)
            if rhythm is not None:
                rhythm.take(_mark(view))
                continue
            rhythms[name] = _Rhythm(_mark(view))
            _check_few(rhythms, "clients" if by_client else "topics")
    return rhythms


# ------------------------------------------------------------------------ who was there, and when


async def _ends(logs: Mapping[str, LogSource], part: HistoryRange, now_ms: int) -> dict[str, int]:
    """Return when a part ends in each log."""
    ends = {}
    for log, source in logs.items():
        sequence = part.ends[log].sequence
        if part.end_ms is not None:
            ends[log] = min(part.end_ms, now_ms)
        elif source.begin <= sequence < source.last:
            with naming_log(log):
                ends[log] = await time_of(source, sequence)
        else:
            ends[log] = now_ms
    return ends


@dataclass(slots=True)
class _Presence:
    """When the broker of a log was stopped, and when clients were away."""

    stops: list[tuple[int, int]] = field(default_factory=list)
    """Times between which it was stopped."""
    steps: dict[str, list[tuple[int, bool, str]]] = field(default_factory=dict)
    """For each client the times at which it connected or left, and why."""

    def take(self, record: Record, before_ms: int) -> None:
        """Add a record; ``before_ms`` is the time of the one before it."""
        for _, event in record.events():
            if isinstance(event, BrokerStarted):
                self.stops.append((before_ms, record.time_ms))
                for steps in self.steps.values():
                    if not steps or steps[-1][1]:
                        steps.append((before_ms, False, ""))
            elif isinstance(event, (SessionOpened, SessionClosed, SessionExpired)):
                own = self.steps.get(event.session)
                if own is not None:
                    reason = event.reason if isinstance(event, SessionClosed) else ""
                    own.append((record.time_ms, isinstance(event, SessionOpened), reason))

    def pause(self, mark: _Mark, end_ms: int) -> PauseView:
        """Return the time from a message of a client on, with its cause."""
        start_ms, end_ms = mark.time_ms, max(mark.time_ms, end_ms)
        stopped = _overlap(self.stops, start_ms, end_ms)
        steps = self.steps.get(mark.client)
        if steps is None:
            running_ms = end_ms - start_ms - stopped
            cause = "broker_stopped" if stopped > running_ms else "not_known"
            return PauseView(start_ms, end_ms, cause, stopped)
        spans, reason = self._absences(steps, mark, end_ms)
        away = sum(
            max(0, min(end, end_ms) - max(begin, start_ms))
            - _overlap(self.stops, max(begin, start_ms), min(end, end_ms))
            for begin, end in spans
        )
        quiet = end_ms - start_ms - stopped - away
        lengths = {"broker_stopped": stopped, "client_away": away, "client_silent": quiet}
        cause = max(lengths, key=lengths.__getitem__)
        return PauseView(start_ms, end_ms, cause, stopped, away, quiet, reason)

    @staticmethod
    def _absences(
        steps: Iterable[tuple[int, bool, str]], mark: _Mark, end_ms: int
    ) -> tuple[list[tuple[int, int]], str]:
        """Return when a client was away after a message, and why it left last."""
        spans: list[tuple[int, int]] = []
        since = mark.time_ms if mark.will else None
        reason = ""
        for time_ms, connected, why in steps:
            if time_ms < mark.time_ms or time_ms > end_ms:
                continue
            if connected and since is not None:
                spans.append((since, time_ms))
                since = None
            elif not connected:
                reason = why or reason
                if since is None:
                    since = time_ms
        if since is not None:
            spans.append((since, end_ms))
        return spans, reason


def _overlap(spans: Iterable[tuple[int, int]], start: int, end: int) -> int:
    return sum(max(0, min(stop, end) - max(begin, start)) for begin, stop in spans)


async def _presences(
    logs: Mapping[str, LogSource], marks: Sequence[_Mark], part: HistoryRange, now_ms: int
) -> dict[str, _Presence]:
    """Return who was there in each log since the first of some messages."""
    presences = {}
    for log, source in logs.items():
        own = [mark for mark in marks if mark.log == log]
        presence = _Presence()
        presence.steps = {mark.client: [] for mark in own if not mark.client.startswith("$")}
        presences[log] = presence
        if not own:
            continue
        first = min(sequence_of(mark.position) for mark in own)
        until = min(part.ends[log].sequence, source.last)
        with naming_log(log):
            await _read_presence(source, presence, first, until)
            if not source.live and until == source.last:
                presence.stops.append((await time_of(source, until), now_ms))
    return presences


async def _read_presence(source: LogSource, presence: _Presence, first: int, last: int) -> None:
    def choose(index: LogIndex) -> Sequence[int]:
        starts = index.rare(_RUNNING)
        chosen = {*starts, *(number - 1 for number in starts)}
        for client in presence.steps:
            chosen.update(index.sequences(LIFECYCLE + client, first, last))
        return sorted(chosen)

    turns = TurnAssembler(anywhere=True)
    before: dict[int, int] = {}
    sequence = time_ms = 0
    async for record in read_listed(source, choose, first, last):
        adjacent = sequence == record.sequence - 1
        before[record.sequence] = time_ms if adjacent else record.time_ms
        sequence, time_ms = record.sequence, record.time_ms
        void, complete = turns.take(record)
        for number in complete:
            presence.take(number, before[number.sequence])
        for number in (*void, *complete):
            del before[number.sequence]
