"""The differences between the states of several logs at two moments, joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.errors import naming_log
from eventstore.format.events import LOG_SESSION
from projections.past.log_moments import points_in_logs
from projections.past.state_differences import (
    retained_changes,
    sessions_changed,
    states_between,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from eventstore.reading.log_source import LogSource
    from eventstore.reading.progress import Progress
    from projections.past.changed_states import ChangedSession
    from projections.past.state_differences import StatesBetween
    from projections.past.state_facts import StateFacts


class LogChanges(NamedTuple):
    """The states of one of the logs at two moments."""

    log: str
    states: StatesBetween


class JoinedChange(NamedTuple):
    """A retained message that differs in the same way in some logs, or in all."""

    mark: str
    """``+``: added, ``-``: removed, ``~``: replaced."""
    topic: str
    size: int
    """Payload bytes, of a removed message before."""
    logs: tuple[str, ...]
    everywhere: bool
    """Whether it differs so in all logs."""


async def changes_in_logs(
    logs: Mapping[str, LogSource], before_ms: int, after_ms: int, progress: Progress
) -> AsyncIterator[LogChanges]:
    """Yield the states of each log at two times, Unix times in milliseconds.

    The sessions that stand for other logs are left out. Raises CorruptLog, UnreadableEvent,
    CutMeanwhile, and CutOff if the state of a log at one of the times is not known.
    """
    starts = await points_in_logs(logs, before_ms)
    ends = await points_in_logs(logs, after_ms)
    for log, source in logs.items():
        with naming_log(log):
            found = await states_between(source, starts[log], ends[log], None, progress)
        for facts in (found.old, found.new):
            _leave_out_logs(facts)
        yield LogChanges(log, found)


def _leave_out_logs(facts: StateFacts) -> None:
    for name in [name for name in facts.sessions if name.startswith(LOG_SESSION)]:
        del facts.sessions[name]


def joined_sessions_changed(changes: Iterable[LogChanges]) -> list[tuple[str, ChangedSession]]:
    """Return log and change of the sessions that differ, by name."""
    found = [
        (one.log, changed)
        for one in changes
        for changed in sessions_changed(one.states.old, one.states.new)
    ]
    return sorted(found, key=lambda each: each[1].name)


def joined_retained_changes(changes: Iterable[LogChanges]) -> list[JoinedChange]:
    """Return the retained messages that differ, by topic.

    A topic that changed in some logs only, or not in the same way, has an element for each way.
    """
    ways: dict[tuple[str, str, int], list[str]] = {}
    count = 0
    for one in changes:
        count += 1
        for way in retained_changes(one.states.old.retained, one.states.new.retained):
            ways.setdefault(way, []).append(one.log)
    found = [
        JoinedChange(mark, topic, size, tuple(logs), len(logs) == count)
        for (mark, topic, size), logs in ways.items()
    ]
    return sorted(found, key=lambda each: each.topic)
