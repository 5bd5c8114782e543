"""Activity of the last day, minute by minute: figures and marks from the log.

All values are sums over records, so that records may be added in any order: the page reads new
records first, and older ones backwards from there. Messages that were taken from another log are
not counted as published: they were published there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cli.web.time_axis import TimeWindow
from cli.web.timeline_marks import Mark, Marks, mark_kind
from cli.web.topic_activity import (
    Branch,
    TopicActivity,
    is_copied,
    messages_by_topic,
    topic_branches,
)
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import count_runs
from eventstore.format.records import Record
from projections.past.disk_use import DiskUse
from protocol.mqtt.shared_filters import SHARE

MINUTE_MS: Final = 60_000
KEPT_MINUTES: Final = 24 * 60
FIGURES: Final = (
    "published",
    "published_bytes",
    "delivered",
    "queued",
    "dropped",
    "expired",
    "connect",
    "takeover",
    "lost",
    "will",
    "restart",
    "log_bytes",
)
"""The figures of each minute: messages, bytes, events by the kind of their mark."""
_OF_RUNS: Final = {"Delivered": "delivered", "Queued": "queued", "Expired": "expired"}
"""The figures of events that name messages."""
_MARKS_A_MINUTE: Final = 60
_NO_CLIENTS: Final = (LOG_SESSION, SHARE)
"""Prefixes of sessions that begin without a CONNECT."""
_USE_MS: Final = 6 * 3_600_000
_NUMBER: Final = {name: number for number, name in enumerate(FIGURES)}


@dataclass(slots=True)
class MinuteActivity:
    """The figures and marks of one minute."""

    figures: array[int] = field(default_factory=lambda: array("Q", bytes(8 * len(FIGURES))))
    marks: Marks = field(default_factory=lambda: Marks(_MARKS_A_MINUTE))

    def add(self, name: str, count: int) -> None:
        """Add to a figure."""
        self.figures[_NUMBER[name]] += count


class Activity:
    """The minutes of the last day, by their number since 1970."""

    def __init__(self) -> None:
        self.minutes: dict[int, MinuteActivity] = {}
        self.topics = TopicActivity()
        self.uses: dict[int, DiskUse] = {}
        """Disk use by slot; a slot is dropped as a whole."""

    def take(self, record: Record, size: int) -> None:
        """Add a record of ``size`` bytes; raises CorruptLog for events that do not fit."""
        self.uses.setdefault(record.time_ms // _USE_MS, DiskUse()).take(record, size)
        minute = self.minutes.setdefault(record.time_ms // MINUTE_MS, MinuteActivity())
        minute.add("log_bytes", size)
        published: list[tuple[str, int, int, str]] = []
        for raw in record.raw_events:
            if raw["e"] == "MessagePublished":
                published += messages_by_topic(raw)
            else:
                self._count(raw, record, minute)
        own = [message for message in published if not is_copied(message[3])]
        minute.add("published", sum(message[1] for message in own))
        minute.add("published_bytes", sum(message[2] for message in own))
        if published:
            self.topics.take(published, size - len(record.payload), record.time_ms)

    def _count(self, raw: Mapping[str, Any], record: Record, minute: MinuteActivity) -> None:
        event = raw["e"]
        if event in _OF_RUNS:
            minute.add(_OF_RUNS[event], count_runs(raw["refs"]))
            return
        kind = mark_kind(event, raw.get("reason", ""))
        # Connections that end with the broker do not count as further restarts.
        if kind is None or (kind == "restart" and event == "SessionClosed"):
            return
        if kind == "connect" and raw["session"].startswith(_NO_CLIENTS):
            return
        count = raw["count"] if kind == "drop" else 1
        minute.add("dropped" if kind == "drop" else kind, count)
        minute.marks.add(kind, Mark(record.time_ms, record.sequence, count))

    def forget_before(self, time_ms: int) -> None:
        """Drop the minutes before a time, and their topics."""
        self.topics.forget_before(time_ms + KEPT_MINUTES * MINUTE_MS)
        for minute in [number for number in self.minutes if number < time_ms // MINUTE_MS]:
            del self.minutes[minute]
        for slot in [number for number in self.uses if number < time_ms // _USE_MS]:
            del self.uses[slot]


class ActivityOfLogs:
    """The activity of some logs, added up."""

    def __init__(self, logs: Sequence[Activity]) -> None:
        self._logs = logs

    def disk_use(self) -> DiskUse:
        """Return the disk use of all records."""
        whole = DiskUse()
        for log in self._logs:
            for _, use in sorted(log.uses.items()):
                whole = whole.merged(use)
        return whole

    @property
    def topics_left_out(self) -> int:
        """The number of messages on topics beyond the limit."""
        return sum(log.topics.left_out for log in self._logs)

    def branches(
        self, under: str | None, now_ms: int, retained: Iterable[Mapping[str, Any]]
    ) -> dict[str, Branch]:
        """Return the branches of the tree of topics one level below a path."""
        return topic_branches([log.topics for log in self._logs], under, now_ms, retained)

    def marks(self, window: TimeWindow) -> dict[str, list[Mark]]:
        """Return the marks of the minutes of a window, in the order of time."""
        joined: dict[str, list[Mark]] = {}
        for minute in self._within(window):
            for kind, marks in minute.marks.kinds().items():
                joined.setdefault(kind, []).extend(marks)
        if len(self._logs) > 1:
            for marks in joined.values():
                marks.sort(key=lambda mark: mark.time_ms)
        return joined

    def totals(self, window: TimeWindow) -> dict[str, int]:
        """Return the figures of the minutes of a window."""
        sums = [0] * len(FIGURES)
        for minute in self._within(window):
            sums = [a + b for a, b in zip(sums, minute.figures, strict=True)]
        return dict(zip(FIGURES, sums, strict=True))

    def figure(self, name: str, minute: int) -> int:
        """Return a figure of a minute by its number."""
        minutes = (log.minutes.get(minute) for log in self._logs)
        return sum(activity.figures[_NUMBER[name]] for activity in minutes if activity is not None)

    def _within(self, window: TimeWindow) -> Iterator[MinuteActivity]:
        numbers = range(window.begin_ms // MINUTE_MS, window.end_ms // MINUTE_MS + 1)
        for log in self._logs:
            yield from (log.minutes[number] for number in numbers if number in log.minutes)
