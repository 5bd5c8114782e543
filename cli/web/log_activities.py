"""The activity of the last day in each of several logs, and in all of them together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cli.web.activity import FIGURES, Activity
from cli.web.activity_reader import ActivityReader
from cli.web.topic_activity import topic_branches
from projections.past.disk_use import DiskUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cli.web.time_axis import TimeWindow
    from cli.web.timeline_marks import Mark
    from cli.web.topic_activity import Branch
    from cli.web.web_log_client import WebLogClient


class ActivityOfLogs:
    """The activity of some logs, added up."""

    def __init__(self, logs: Sequence[Activity]) -> None:
        self._logs = logs

    def marks(self, window: TimeWindow) -> dict[str, list[Mark]]:
        """Return the marks of the minutes of a window, in the order of time."""
        found: dict[str, list[Mark]] = {}
        for log in self._logs:
            for kind, marks in log.marks(window).items():
                found.setdefault(kind, []).extend(marks)
        if len(self._logs) > 1:
            for marks in found.values():
                marks.sort(key=lambda mark: mark.time_ms)
        return found

    def totals(self, window: TimeWindow) -> dict[str, int]:
        """Return the figures of the minutes of a window."""
        totals = [log.totals(window) for log in self._logs]
        return {name: sum(one[name] for one in totals) for name in FIGURES}

    def figure(self, name: str, minute: int) -> int:
        """Return a figure of a minute by its number."""
        return sum(log.figure(name, minute) for log in self._logs)

    def disk_use(self) -> DiskUse:
        """Return the disk use of all records."""
        whole = DiskUse()
        for log in self._logs:
            whole = whole.merged(log.disk_use())
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


class ReadersOfLogs:
    """Readers of the activity of some logs, as one; it is known only if that of each log is."""

    def __init__(self, readers: Sequence[ActivityReader]) -> None:
        self._readers = readers

    @property
    def activity(self) -> ActivityOfLogs:
        """The activity as far as it was read."""
        return ActivityOfLogs([one.activity for one in self._readers])

    @property
    def since_ms(self) -> int | None:
        """Time from which the activity is complete; None: it is not known of some log yet."""
        whole, partial = list[int](), list[int]()
        for one in self._readers:
            if one.since_ms is not None:
                # A log that began less than a day ago does not limit the others.
                (whole if _covers_all(one) else partial).append(one.since_ms)
            elif not one.complete:
                return None
        return max(partial) if partial else min(whole, default=None)

    @property
    def problem(self) -> str | None:
        """Why reading stopped, as text."""
        return next((one.problem for one in self._readers if one.problem is not None), None)

    def reading(self) -> str | None:
        """Return the progress of reading as text; None: it is complete."""
        behind = [one for one in self._readers if not one.complete]
        behind.sort(key=lambda one: -1 if one.since_ms is None else -one.since_ms)
        return behind[0].reading() if behind else None

    async def wait(self, max_wait: float) -> None:
        """Read on, as ``ActivityReader.wait``."""
        await asyncio.gather(*(one.wait(max_wait) for one in self._readers))

    async def wait_first_time(self, max_wait: float) -> None:
        """Read on, as ``ActivityReader.wait_first_time``."""
        await asyncio.gather(*(one.wait_first_time(max_wait) for one in self._readers))

    async def reach(self, time_ms: int, max_wait: float) -> bool:
        """Return whether the activity of a time is complete, as ``ActivityReader.reach``."""
        found = await asyncio.gather(*(one.reach(time_ms, max_wait) for one in self._readers))
        return any(found) and all(
            reached or _covers_all(one) for reached, one in zip(found, self._readers, strict=True)
        )


class LogActivities:
    """The readers of all logs, created when a page needs them."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._readers: dict[str, ActivityReader] = {}

    async def of(self, log: str = "") -> ReadersOfLogs:
        """Return the reader of a log, or without a name of all; raises NoLiveBroker."""
        names = [log] if log else await self._link.logs()
        for name in names:
            if name not in self._readers:
                self._readers[name] = ActivityReader(self._link, log=name)
        return ReadersOfLogs([self._readers[name] for name in names])

    async def close(self) -> None:
        """Stop reading."""
        for reader in self._readers.values():
            await reader.close()


def _covers_all(reader: ActivityReader) -> bool:
    """Return whether a day, or the whole log, was read."""
    return reader.complete and reader.problem is None
